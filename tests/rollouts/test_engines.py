import pytest
import torch
from scipy.stats import chi2_contingency

from fractionate.models.load import LanguageModel
from fractionate.rollouts.engines import ENGINES

PROMPTS = [[1, 5, 9], [1, 20, 21, 22, 23], [7]]
BOTH = sorted(ENGINES)


def test_engines_agree_greedily(any_model: LanguageModel):
    native, other = (
        ENGINES[name].sample(
            any_model, PROMPTS, temperature=0.0, max_new_tokens=16, seed=0, entropy=True
        )
        for name in ("native", "transformers")
    )
    width = int(native.completions.lengths.max())
    assert torch.equal(native.completions.lengths, other.completions.lengths)
    assert torch.equal(native.completions.tokens, other.completions.tokens[:, :width])
    assert native.completions.stop == other.completions.stop
    assert native.entropy is not None
    assert other.entropy is not None
    assert torch.allclose(native.entropy.float(), other.entropy.float(), atol=1e-5)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_engines_agree_in_law(student: LanguageModel, top_p: float):
    counts, log_probs = [], []
    for name in BOTH:
        written = (
            ENGINES[name]
            .sample(
                student,
                [[1, 5, 9]],
                samples=2000,
                temperature=0.8,
                top_p=top_p,
                max_new_tokens=1,
                seed=3,
            )
            .completions
        )
        counts.append(torch.bincount(written.tokens[:, 0], minlength=32))
        pairs = zip(written.tokens[:, 0].tolist(), written.log_probs[:, 0].tolist(), strict=True)
        log_probs.append(dict(pairs))
    table = torch.stack(counts)
    common = table.sum(0) >= 20
    assert chi2_contingency(table[:, common].numpy()).pvalue > 1e-3
    for token in set(log_probs[0]) & set(log_probs[1]):
        assert log_probs[0][token] == pytest.approx(log_probs[1][token], abs=1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_engines_keep_to_the_effective_vocabulary(student: LanguageModel, name: str):
    cut = LanguageModel(student.module, student.tokenizer, (2,), 2, 0, 10, "test")
    written = ENGINES[name].sample(cut, PROMPTS, samples=5, max_new_tokens=8, seed=0).completions
    assert int(written.tokens.max()) < 10
    assert bool((written.log_probs <= 0).all())


@pytest.mark.parametrize("name", BOTH)
def test_engines_repeat_and_leave_the_global_generator_alone(student: LanguageModel, name: str):
    before = torch.get_rng_state()
    first = ENGINES[name].sample(student, PROMPTS, samples=3, max_new_tokens=8, seed=4).completions
    again = ENGINES[name].sample(student, PROMPTS, samples=3, max_new_tokens=8, seed=4).completions
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(torch.get_rng_state(), before)
