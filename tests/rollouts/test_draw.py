import pytest
import torch
from scipy.stats import chisquare

from fractionate.config import (
    CoinRollout,
    DatasetRollout,
    HandoverRollout,
    SkdRollout,
    SpectrumRollout,
    StudentRollout,
    TeacherRollout,
    Temperature,
)
from fractionate.models.hidden import completion_hidden, head_weight
from fractionate.models.load import LanguageModel
from fractionate.records import Source, StopReason
from fractionate.rollouts import Completions, Speaker, draw, from_dataset
from fractionate.rollouts.laws import (
    coin_token_log_probs,
    nucleus_log_probs,
    skd_log_probs,
    spectrum_log_probs,
)
from fractionate.rollouts.sampling import sampler_log_probs
from tiny import tokenizer

PROMPTS = [[1, 5, 9], [1, 20, 21, 22], [1, 7]]
TEACHER_PROMPTS = [[1, 5, 9, 9, 9, 10], [1, 20, 21], [1, 7, 8, 3]]
TEMPERATURE = Temperature(student_rollout=0.9, teacher_rollout=0.6)
ALL = [
    StudentRollout(),
    TeacherRollout(),
    SpectrumRollout(lam=0.0),
    SpectrumRollout(lam=1.7),
    CoinRollout(student_share=0.4),
    CoinRollout(student_share=0.4, per="sequence"),
    HandoverRollout(teacher_tokens=3),
    SkdRollout(top_k=4),
]


@pytest.fixture(scope="module")
def pair(student: LanguageModel, teacher: LanguageModel) -> dict[str, Speaker]:
    return {"student": Speaker(student, PROMPTS), "teacher": Speaker(teacher, TEACHER_PROMPTS)}


def write(rollout, pair: dict[str, Speaker], **changes) -> Completions:
    arguments = {"max_new_tokens": 16, "seed": 11, "samples": 4, **pair, **changes}
    return draw(rollout, arguments.pop("temperature", TEMPERATURE), **arguments)


def tempered(speaker: Speaker, completions: Completions, temperature: float, top_p: float = 1.0):
    """Log-probabilities of the whole vocabulary at every completion token, [tokens, vocab]."""
    contexts = [prompt for prompt in speaker.prompts for _ in range(4)]
    with torch.no_grad():
        hidden = completion_hidden(speaker.model.module, contexts, completions)
        logits = hidden @ head_weight(speaker.model.module).T
    return sampler_log_probs(logits, temperature=temperature, top_p=top_p)


def both(pair: dict[str, Speaker], completions: Completions, top_p: float = 1.0):
    return {
        "student_log_probs": tempered(pair["student"], completions, 0.9, top_p),
        "teacher_log_probs": tempered(pair["teacher"], completions, 0.6, top_p),
    }


def assert_drawn_from(law: torch.Tensor, completions: Completions) -> None:
    tokens = completions.tokens[completions.mask]
    expected = law.gather(-1, tokens[:, None])[:, 0]
    assert torch.allclose(completions.log_probs[completions.mask], expected, atol=1e-6)
    assert bool((completions.log_probs[~completions.mask] == 0).all())


def test_student_writes_by_its_own_law(pair: dict[str, Speaker]):
    written = write(StudentRollout(), pair)
    assert_drawn_from(tempered(pair["student"], written, 0.9), written)
    assert bool((written.source == Source.STUDENT).all())


def test_teacher_writes_by_its_own_law_in_its_own_context(pair: dict[str, Speaker]):
    written = write(TeacherRollout(), pair)
    assert_drawn_from(tempered(pair["teacher"], written, 0.6), written)
    assert bool((written.source[written.mask] == Source.TEACHER).all())


@pytest.mark.parametrize("lam", [-1.7, -1.0, 0.0, 0.4, 1.7])
def test_spectrum_writes_by_its_law(pair: dict[str, Speaker], lam: float):
    written = write(SpectrumRollout(lam=lam), pair)
    assert_drawn_from(spectrum_log_probs(**both(pair, written), lam=lam), written)
    assert bool((written.source[written.mask] == Source.MIXTURE).all())


def test_token_coin_writes_by_its_law(pair: dict[str, Speaker]):
    written = write(CoinRollout(student_share=0.4), pair)
    assert_drawn_from(coin_token_log_probs(**both(pair, written), student_share=0.4), written)
    assert set(written.source[written.mask].tolist()) == {Source.STUDENT, Source.TEACHER}


def test_sequence_coin_has_one_writer_per_completion(pair: dict[str, Speaker]):
    written = write(CoinRollout(student_share=0.4, per="sequence"), pair)
    laws = both(pair, written)
    student = (written.source == Source.STUDENT)[written.mask]
    chosen = torch.where(student[:, None], *laws.values())
    assert_drawn_from(chosen, written)
    writers = [
        set(source[:length].tolist())
        for source, length in zip(written.source, written.lengths.tolist(), strict=True)
    ]
    assert all(len(names) == 1 for names in writers)
    assert {Source.STUDENT} in writers
    assert {Source.TEACHER} in writers


def test_skd_writes_by_its_law(pair: dict[str, Speaker]):
    written = write(SkdRollout(top_k=4), pair)
    assert_drawn_from(skd_log_probs(**both(pair, written), top_k=4), written)
    assert set(written.source[written.mask].tolist()) == {Source.STUDENT, Source.TEACHER}


def test_handover_changes_the_writer_after_k_tokens(pair: dict[str, Speaker]):
    written = write(HandoverRollout(teacher_tokens=3), pair)
    laws = both(pair, written)
    position = torch.arange(written.tokens.shape[1]).expand(written.tokens.shape)[written.mask]
    by_teacher = position < 3
    chosen = torch.where(by_teacher[:, None], laws["teacher_log_probs"], laws["student_log_probs"])
    assert_drawn_from(chosen, written)
    source = written.source[written.mask]
    assert torch.equal(source == Source.TEACHER, by_teacher)


def test_handover_after_nothing_is_the_student(pair: dict[str, Speaker]):
    assert torch.equal(
        write(HandoverRollout(teacher_tokens=0), pair).tokens,
        write(StudentRollout(), pair).tokens,
    )


def test_nucleus_is_part_of_the_law(pair: dict[str, Speaker]):
    temperature = Temperature(student_rollout=0.9, teacher_rollout=0.6, top_p=0.8)
    written = write(StudentRollout(), pair, temperature=temperature)
    assert_drawn_from(tempered(pair["student"], written, 0.9, 0.8), written)
    written = write(SpectrumRollout(lam=0.0), pair, temperature=temperature)
    mixture = spectrum_log_probs(**both(pair, written), lam=0.0)
    assert_drawn_from(nucleus_log_probs(mixture, top_p=0.8), written)
    written = write(CoinRollout(student_share=0.4), pair, temperature=temperature)
    laws = both(pair, written, top_p=0.8)
    assert_drawn_from(coin_token_log_probs(**laws, student_share=0.4), written)


@pytest.mark.parametrize("rollout", ALL, ids=lambda rollout: rollout.label)
def test_first_tokens_follow_the_law(pair: dict[str, Speaker], rollout):
    one = {name: Speaker(s.model, s.prompts[:1]) for name, s in pair.items()}
    written = write(rollout, one, samples=3000, max_new_tokens=1)
    counts = torch.bincount(written.tokens[:, 0], minlength=32).double()
    law = torch.zeros(32, dtype=torch.float64)
    alone = {name: Speaker(s.model, s.prompts[:1]) for name, s in pair.items()}
    outlook = {
        name: sampler_log_probs(
            s.model.module(torch.tensor([s.prompts[0]])).logits[0, -1].detach(),
            temperature=0.9 if name == "student" else 0.6,
        )
        for name, s in alone.items()
    }
    laws = {f"{name}_log_probs": value for name, value in outlook.items()}
    law = {
        "student": lambda: outlook["student"],
        "teacher": lambda: outlook["teacher"],
        "handover": lambda: outlook["teacher"],
        "spectrum": lambda: spectrum_log_probs(**laws, lam=rollout.lam),
        "coin": lambda: coin_token_log_probs(**laws, student_share=0.4),
        "skd": lambda: skd_log_probs(**laws, top_k=4),
    }[rollout.kind]().exp()
    common = law > 5 / 3000
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([law[common], law[~common].sum()[None]]) * 3000
    keep = expected > 1
    scale = observed[keep].sum() / expected[keep].sum()
    assert chisquare(observed[keep].numpy(), (expected[keep] * scale).numpy()).pvalue > 1e-3


def test_teacher_hidden_states_are_those_of_scoring(pair: dict[str, Speaker]):
    written = write(TeacherRollout(), pair, keep_teacher_hidden=True)
    assert written.hidden is not None
    contexts = [prompt for prompt in TEACHER_PROMPTS for _ in range(4)]
    with torch.no_grad():
        scored = completion_hidden(pair["teacher"].model.module, contexts, written)
    assert torch.allclose(written.hidden[written.mask], scored, atol=1e-5)
    assert bool((written.hidden[~written.mask] == 0).all())


def test_completions_may_take_part_in_a_backward_pass(pair: dict[str, Speaker]):
    written = write(TeacherRollout(), pair, keep_teacher_hidden=True)
    assert written.hidden is not None
    assert not written.tokens.is_inference()
    assert not written.hidden.is_inference()


@pytest.mark.parametrize("rollout", ALL, ids=lambda rollout: rollout.label)
def test_a_draw_can_be_repeated(pair: dict[str, Speaker], rollout):
    first, again = write(rollout, pair), write(rollout, pair)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.log_probs, again.log_probs)
    other = write(rollout, pair, seed=12)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)


def test_stop_set_is_the_union_of_both_models(pair: dict[str, Speaker]):
    module = pair["teacher"].model.module
    model = LanguageModel(module, tokenizer(), (2, 9, 17), 2, 0, 32, "test")
    written = write(StudentRollout(), {**pair, "teacher": Speaker(model, PROMPTS)}, samples=20)
    ends = {
        int(tokens[length - 1])
        for tokens, length, stop in zip(written.tokens, written.lengths, written.stop, strict=True)
        if stop == StopReason.STOP
    }
    assert len(ends) > 1
    assert ends <= {2, 9, 17}


@pytest.mark.parametrize(
    ("rollout", "missing"),
    [(StudentRollout(), "student"), (TeacherRollout(), "teacher"), (SkdRollout(), "teacher")],
)
def test_a_missing_model_is_named(pair: dict[str, Speaker], rollout, missing: str):
    with pytest.raises(ValueError, match=missing):
        write(rollout, {**pair, missing: None})


def test_hidden_states_of_a_mixture_are_refused(pair: dict[str, Speaker]):
    with pytest.raises(ValueError, match="teacher writes alone"):
        write(StudentRollout(), pair, keep_teacher_hidden=True)


def test_dataset_is_no_draw(pair: dict[str, Speaker]):
    with pytest.raises(ValueError, match="from_dataset"):
        write(DatasetRollout(), pair)


def test_demonstrations_get_a_stop_token_and_are_cut_in_the_open():
    written = from_dataset(
        ["3 4 5", "6 <eos>", "7 8 9 10 11"], tokenizer(), end_id=2, max_new_tokens=4
    )
    assert written.lengths.tolist() == [4, 2, 4]
    assert written.tokens[0].tolist() == [6, 7, 8, 2]
    assert written.tokens[1, :2].tolist() == [9, 2]
    assert written.stop == (StopReason.STOP, StopReason.STOP, StopReason.LENGTH)
    assert bool((written.source == Source.DATASET).all())
    assert bool((written.log_probs == 0).all())


def test_no_demonstration_is_an_error():
    with pytest.raises(ValueError, match="no demonstration"):
        from_dataset([], tokenizer(), end_id=2, max_new_tokens=4)
