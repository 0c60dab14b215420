import pytest
import torch

import tiny
from fractionate.losses import forward_kl, log_probs
from fractionate.metrics.drift import completion_kl
from fractionate.models.load import wrap
from fractionate.rollouts.decode import Speaker
from fractionate.rollouts.draw import sample

PROMPTS = [[1, 5, 6], [1, 7], [1, 8, 9, 10]]
LONGER = [[1, 4, 4, *prompt[1:]] for prompt in PROMPTS]


def speaker(seed, prompts=PROMPTS, **changes):
    return Speaker(wrap(tiny.llama(seed, **changes), tiny.tokenizer()), prompts)


@pytest.fixture(scope="module")
def reference():
    return speaker(1, LONGER)


@pytest.fixture(scope="module")
def completions(reference):
    return sample(reference.model, reference.prompts, max_new_tokens=9, seed=0).completions


def whole_logits(who, row, completions, temperature):
    length = int(completions.lengths[row])
    written = completions.tokens[row, :length].tolist()
    prompt = list(who.prompts[row])
    with torch.no_grad():
        logits = who.model.module(torch.tensor([prompt + written])).logits[0]
    return log_probs(logits[len(prompt) - 1 : -1], temperature=temperature)


def test_it_is_the_mean_forward_kl_of_the_whole_logits(reference, completions):
    model = speaker(2, width=64)
    values = completion_kl(
        reference, model, completions, reference_temperature=0.5, model_temperature=2.0
    )
    for row, value in enumerate(values):
        exact = forward_kl(
            teacher_log_probs=whole_logits(reference, row, completions, 0.5),
            student_log_probs=whole_logits(model, row, completions, 2.0),
        ).mean()
        assert value == pytest.approx(float(exact), rel=1e-4)


@pytest.mark.parametrize("tokens", [1, 20, 4096])
def test_passes_do_not_change_the_values(reference, completions, tokens):
    model = speaker(2)
    whole = completion_kl(reference, model, completions)
    parts = completion_kl(reference, model, completions, tokens_per_pass=tokens)
    assert parts == pytest.approx(whole, rel=1e-5)


def test_dropout_is_off_while_scoring_and_the_mode_comes_back(reference, completions):
    model = speaker(2, attention_dropout=0.5)
    calm = completion_kl(reference, model, completions)
    model.model.module.train()
    assert completion_kl(reference, model, completions) == calm
    assert model.model.module.training
    assert not reference.model.module.training


def test_a_completion_without_a_token_is_refused(reference, completions):
    empty = type(completions)(
        completions.tokens,
        torch.tensor([1, 0, 1]),
        completions.log_probs,
        completions.source,
        completions.stop,
    )
    with pytest.raises(ValueError, match="completion 1 has no token"):
        completion_kl(reference, reference, empty)
