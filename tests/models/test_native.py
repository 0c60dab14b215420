"""The native kernel against transformers and against the torch path."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from fractionate.models.load import LanguageModel
from fractionate.models.native import compiler
from fractionate.models.native.engine import Batch, Slots, Weights
from fractionate.models.native.stepper import NativeStepper
from fractionate.models.stepper import TransformersStepper
from fractionate.records import StopReason
from fractionate.rng import borrow_global, stream
from fractionate.rollouts import sample
from fractionate.rollouts.decode import DecodeBudget
from fractionate.rollouts.sampling import draw_from_logits, entropy
from tiny import llama

pytestmark = pytest.mark.skipif(
    compiler.find_compiler() is None, reason="there is no C compiler here"
)
PROMPTS = [[1, 5, 9], [1, 20, 21, 22, 23, 24], [7], [1, 11, 12, 13]]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def with_biases(module: PreTrainedModel) -> PreTrainedModel:
    with borrow_global(7, "biases"), torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.5)
    return module


def qwen2() -> PreTrainedModel:
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    with borrow_global(5, "qwen2"):
        return with_biases(Qwen2ForCausalLM(config).eval())


def make(seed: int = 3, **changes) -> PreTrainedModel:
    return with_biases(llama(seed, **{"initializer_range": 0.3, **changes}))


MODULES = {
    "grouped-query": make,
    "one-head-each": lambda: make(num_key_value_heads=4),
    "llama3-rope": lambda: make(rope_parameters=LLAMA3_ROPE),
    "tied": lambda: make(tie_word_embeddings=True),
    "head-size-of-its-own": lambda: make(head_dim=20),
    "odd-sizes": lambda: make(
        width=42, num_attention_heads=3, num_key_value_heads=1, intermediate_size=75
    ),
    "all-biases": lambda: make(intermediate_size=50, attention_bias=True, mlp_bias=True),
    "qwen2": qwen2,
}


@pytest.fixture(params=sorted(MODULES))
def module(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODULES[request.param]()


def wrapped(module: PreTrainedModel, kernel: str = "native", stops=(2,)) -> LanguageModel:
    size = module.config.vocab_size
    return LanguageModel(module, None, stops, 2, 0, size, "test", kernel)  # type: ignore[arg-type]


def compare(native: LanguageModel, reference: LanguageModel, tolerance: float) -> None:
    """Step by step, with rows of different lengths, shared prompts and after rows have left."""
    with torch.inference_mode():
        steppers = (NativeStepper(Weights(native)), TransformersStepper(reference))
        outlooks = [s.prefill(PROMPTS, samples=2, max_new_tokens=99) for s in steppers]
        for step in range(70):  # beyond one page of the cache
            assert torch.allclose(outlooks[0].logits, outlooks[1].logits, atol=tolerance)
            assert torch.allclose(outlooks[0].hidden, outlooks[1].hidden, atol=tolerance)
            tokens = outlooks[1].logits.argmax(-1)
            if step == 5:
                rows = torch.tensor([0, 3, 4, 6])
                tokens = tokens[rows]
                for stepper in steppers:
                    stepper.keep(rows)
            outlooks = [stepper.step(tokens) for stepper in steppers]


def test_logits_and_hidden_states_are_those_of_transformers(module: PreTrainedModel):
    compare(wrapped(module), wrapped(module), 1e-4)


def test_bfloat16_weights_are_widened_exactly(module: PreTrainedModel):
    rounded = module.bfloat16()
    native = wrapped(rounded)
    narrow = sample(native, PROMPTS, samples=2, max_new_tokens=30, seed=3).completions
    wide = sample(wrapped(rounded.float()), PROMPTS, samples=2, max_new_tokens=30, seed=3)
    assert torch.equal(narrow.tokens, wide.completions.tokens)
    assert torch.equal(narrow.log_probs, wide.completions.log_probs)


def test_greedy_tokens_are_those_of_transformers_wherever_the_choice_is_clear(
    module: PreTrainedModel,
):
    written = sample(wrapped(module), PROMPTS, temperature=0, max_new_tokens=24, seed=0).completions
    for row, prompt in enumerate(PROMPTS):
        tokens = written.tokens[row, : written.lengths[row]]
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens.tolist()]])
            logits = module(ids).logits[0, len(prompt) - 1 : -1]
        two = logits.topk(2).values
        clear = two[:, 0] - two[:, 1] > 1e-4
        assert bool(clear.any())
        assert torch.equal(logits.argmax(-1)[clear], tokens[clear])


def test_log_probs_are_those_of_a_teacher_forced_forward(module: PreTrainedModel):
    kept = sample(
        wrapped(module), PROMPTS, samples=3, temperature=0.8, max_new_tokens=40, seed=5
    ).completions
    for row in range(len(kept.stop)):
        prompt, length = PROMPTS[row // 3], int(kept.lengths[row])
        tokens = kept.tokens[row, :length]
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens.tolist()]])
            law = (module(ids).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
        expected = law.gather(-1, tokens[:, None])[:, 0]
        assert torch.allclose(kept.log_probs[row, :length], expected, rtol=1e-4, atol=1e-5)


def test_first_tokens_follow_the_law():
    module, count = make(initializer_range=0.1), 8000
    written = sample(wrapped(module), [[1, 5, 9]], samples=count, max_new_tokens=1, seed=11)
    with torch.no_grad():
        law = module(torch.tensor([[1, 5, 9]])).logits[0, -1].double().softmax(-1)
    seen = torch.bincount(written.completions.tokens[:, 0], minlength=32)
    common = law * count > 5
    observed, expected = seen[common].numpy(), (law[common] * count).numpy()
    expected = expected * observed.sum() / expected.sum()
    assert len(observed) > 10
    assert chisquare(observed, expected).pvalue > 0.01


@pytest.mark.parametrize(
    "budget",
    [
        DecodeBudget(memory=2**30, rows=1),
        DecodeBudget(memory=2**30, rows=5),
        DecodeBudget(memory=60_000, rows=8),  # pages run out: rows go back and are read again
    ],
)
def test_what_is_written_does_not_depend_on_the_company(budget: DecodeBudget):
    model = wrapped(make())
    run = {"samples": 4, "max_new_tokens": 140, "seed": 1, "entropy": True}
    whole, parts = sample(model, PROMPTS, **run), sample(model, PROMPTS, **run, budget=budget)
    assert torch.equal(whole.completions.tokens, parts.completions.tokens)
    assert torch.equal(whole.completions.log_probs, parts.completions.log_probs)
    assert whole.completions.stop == parts.completions.stop
    assert whole.entropy is not None
    assert parts.entropy is not None
    assert torch.equal(whole.entropy, parts.entropy)


def test_the_torch_path_sees_the_same_random_numbers():
    module = make()
    run = {"samples": 4, "max_new_tokens": 60, "seed": 1, "temperature": 0.9, "entropy": True}
    native, lean = (
        sample(wrapped(module, kernel), PROMPTS, **run) for kernel in ("native", "torch")
    )
    assert torch.equal(native.completions.tokens, lean.completions.tokens)
    assert torch.allclose(native.completions.log_probs, lean.completions.log_probs, atol=1e-4)
    assert native.entropy is not None
    assert lean.entropy is not None
    assert torch.allclose(native.entropy, lean.entropy, atol=1e-5)


def test_completions_end_at_stop_tokens():
    written = sample(wrapped(make()), PROMPTS, samples=20, max_new_tokens=24, seed=8).completions
    assert set(written.stop) == {StopReason.STOP, StopReason.LENGTH}
    for tokens, length, stop in zip(
        written.tokens.tolist(), written.lengths.tolist(), written.stop, strict=True
    ):
        assert 2 not in tokens[: length - 1]
        assert (tokens[length - 1] == 2) == (stop == StopReason.STOP)
        assert stop == StopReason.STOP or length == 24


def test_ids_beyond_the_effective_vocabulary_are_never_written():
    cut = dataclasses.replace(wrapped(make()), vocab_size=10)
    written = sample(cut, PROMPTS, samples=10, max_new_tokens=12, seed=0).completions
    assert int(written.tokens.max()) < 10


def drawing() -> Slots:
    return Slots(Weights(wrapped(make())), slots=1, length=8, pages=1)


@pytest.mark.parametrize("size", [5, 300, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_kernel_draws_as_torch_does(size: int, temperature: float):
    cache = Slots(
        Weights(dataclasses.replace(wrapped(make(vocab_size=1000)), vocab_size=size)),
        slots=1,
        length=8,
        pages=1,
    )
    generator = stream(3, "logits")
    logits = torch.from_numpy(4 * generator.standard_normal((500, size))).float()
    numbers = generator.random(500)
    drawn = cache.draw(logits, numbers, temperature=temperature, entropy=True)
    expected = draw_from_logits(logits, torch.from_numpy(numbers), temperature=temperature)
    assert np.array_equal(drawn.tokens, expected.tokens.numpy())
    assert np.allclose(drawn.log_probs, expected.log_probs.numpy(), atol=2e-5)
    assert drawn.entropy is not None
    assert np.allclose(drawn.entropy, entropy(logits).numpy(), atol=1e-5)


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, 1 - 2**-53])
def test_a_token_of_weight_zero_is_never_drawn(number: float):
    logits = torch.full((1, 32), -torch.inf)
    logits[0, [3, 17]] = 0.25
    drawn = drawing().draw(logits, np.array([number]), temperature=1.0, entropy=True)
    assert int(drawn.tokens[0]) in (3, 17)
    assert float(drawn.log_probs[0]) == pytest.approx(np.log(0.5), abs=1e-6)
    assert drawn.entropy is not None
    assert float(drawn.entropy[0]) == pytest.approx(np.log(2), abs=1e-6)


def test_a_greedy_tie_goes_to_the_lowest_id():
    logits = torch.zeros(1, 32)
    logits[0, [9, 21]] = 1.0
    drawn = drawing().draw(logits, np.zeros(1), temperature=0, entropy=False)
    assert (drawn.tokens.tolist(), drawn.log_probs.tolist()) == ([9], [0.0])


def test_a_prompt_read_in_parts_is_the_prompt_read_at_once():
    text = list(stream(2, "text").integers(0, 32, 300))
    weights = Weights(wrapped(make()))
    last = []
    for parts in ([300], [1, 130, 169]):
        cache, at = Slots(weights, slots=1, length=300, pages=5), 0
        assert cache.reserve(0, 300)
        for part in parts:
            batch = Batch.contexts([text[at : at + part]], [0])
            moved = dataclasses.replace(batch, positions=batch.positions + np.int32(at))
            hidden, at = cache.forward(moved), at + part
        last.append(hidden)
    assert torch.equal(*last)


def test_a_model_that_the_kernel_does_not_know_is_refused():
    with pytest.raises(compiler.KernelError, match="kernel: torch"):
        sample(wrapped(make().double()), PROMPTS, max_new_tokens=4, seed=0)
    dynamic = make(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(compiler.KernelError, match="is no Llama or Qwen2 model"):
        sample(wrapped(dynamic), PROMPTS, max_new_tokens=4, seed=0)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="no token"):
        sample(wrapped(make()), [[1], []], max_new_tokens=4, seed=0)


def test_without_a_compiler_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(compiler.KernelError, match=r"needs a C compiler.*kernel: torch"):
        compiler.library.__wrapped__()
