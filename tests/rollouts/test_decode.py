import pytest
import torch

from fractionate.models.llama import LlamaStepper, runs_lean
from fractionate.models.load import LanguageModel
from fractionate.models.stepper import TransformersStepper
from fractionate.records import StopReason
from fractionate.rollouts import Completions, sample
from fractionate.rollouts.decode import DecodeBudget, Decoder, Speaker, open_stepper
from tiny import llama

PROMPTS = [[1, 5, 9], [1, 20, 21, 22, 23, 24], [7], [1, 11, 12, 13]]
NEW = 24


def texts(completions: Completions) -> list[list[int]]:
    rows = zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]


def greedy_of_transformers(model: LanguageModel, prompt: list[int]) -> list[int]:
    output = model.module.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def test_greedy_tokens_are_those_of_transformers(any_model: LanguageModel):
    written = sample(any_model, PROMPTS, temperature=0.0, max_new_tokens=NEW, seed=0).completions
    assert texts(written) == [greedy_of_transformers(any_model, prompt) for prompt in PROMPTS]


def test_lean_logits_equal_the_modules_own(any_model: LanguageModel):
    """Step by step, with rows of different lengths and after rows have left."""
    steppers = (open_stepper(any_model), TransformersStepper(any_model))
    with torch.inference_mode():
        outlooks = [s.prefill(PROMPTS, samples=2, max_new_tokens=99) for s in steppers]
        for step in range(70):  # beyond the columns allocated first
            assert torch.allclose(outlooks[0].logits, outlooks[1].logits, atol=1e-5)
            assert torch.allclose(outlooks[0].hidden, outlooks[1].hidden, atol=1e-5)
            tokens = outlooks[0].logits.argmax(-1)
            if step == 5:
                rows = torch.tensor([0, 3, 4, 6])
                tokens = tokens[rows]
                for stepper in steppers:
                    stepper.keep(rows)
            outlooks = [stepper.step(tokens) for stepper in steppers]


def test_a_wide_head_in_slices_is_the_head(student: LanguageModel):
    module = llama(1, vocab_size=1300, initializer_range=0.3)
    wide = LanguageModel(module, student.tokenizer, (2,), 2, 0, 1299, "test")
    with torch.inference_mode():
        lean, own = (
            stepper.prefill(PROMPTS, samples=1, max_new_tokens=1).logits
            for stepper in (open_stepper(wide), TransformersStepper(wide))
        )
    assert lean.shape == own.shape == (4, 1299)
    assert torch.allclose(lean, own, atol=1e-5)


def test_rotary_kinds_that_depend_on_the_length_run_the_modules_own_forward():
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert runs_lean(llama())
    assert not runs_lean(llama(rope_parameters=dynamic))


def test_a_gpt2_runs_the_modules_own_forward(any_model: LanguageModel):
    lean = any_model.module.config.model_type in ("llama", "qwen2")
    assert isinstance(open_stepper(any_model), LlamaStepper if lean else TransformersStepper)


def test_bfloat16_weights_are_widened_on_a_cpu(student: LanguageModel):
    rounded = llama(1, initializer_range=0.3).bfloat16()
    wide = llama(1, initializer_range=0.3).bfloat16().float()
    kinds = [
        LanguageModel(module, student.tokenizer, (2,), 2, 0, 32, "test")
        for module in (rounded, wide)
    ]
    written = [
        sample(model, PROMPTS, samples=3, max_new_tokens=NEW, seed=3).completions for model in kinds
    ]
    assert torch.equal(written[0].tokens, written[1].tokens)
    assert written[0].log_probs.dtype == torch.float32


@pytest.mark.parametrize("rows", [1, 5])
def test_waves_do_not_change_what_is_written(any_model: LanguageModel, rows: int):
    def write(budget: DecodeBudget | None) -> Completions:
        return sample(
            any_model, PROMPTS, samples=2, max_new_tokens=12, seed=1, budget=budget
        ).completions

    whole, waves = write(None), write(DecodeBudget(memory=2**30, rows=rows))
    assert torch.equal(whole.tokens, waves.tokens)
    assert whole.stop == waves.stop
    assert torch.allclose(whole.log_probs, waves.log_probs, atol=1e-5)


def test_rows_that_outlive_a_wave_go_on_where_they_were(student: LanguageModel):
    unending = LanguageModel(student.module, student.tokenizer, (31,), 31, 0, 31, "test")
    small = DecodeBudget(memory=2**30, rows=2)
    whole = sample(unending, PROMPTS, max_new_tokens=140, seed=2).completions
    waves = sample(unending, PROMPTS, max_new_tokens=140, seed=2, budget=small).completions
    assert whole.lengths.tolist() == [140] * 4
    assert torch.equal(whole.tokens, waves.tokens)


@pytest.mark.parametrize("memory", [300_000, 100_000])  # all rows for 139 tokens; one row a time
def test_a_budget_of_memory_does_not_change_what_is_written(student: LanguageModel, memory: int):
    unending = LanguageModel(student.module, student.tokenizer, (31,), 31, 0, 31, "test")
    tight = DecodeBudget(memory=memory, rows=100)
    whole = sample(unending, PROMPTS, max_new_tokens=150, seed=2).completions
    parts = sample(unending, PROMPTS, max_new_tokens=150, seed=2, budget=tight).completions
    assert torch.equal(whole.tokens, parts.tokens)


def test_a_row_does_not_depend_on_what_else_is_in_the_batch(student: LanguageModel):
    few = sample(student, PROMPTS[:2], max_new_tokens=NEW, seed=4).completions
    many = sample(student, PROMPTS, max_new_tokens=NEW, seed=4).completions
    assert texts(few) == texts(many)[:2]


def test_seeds_and_samples_differ(student: LanguageModel):
    first = sample(student, PROMPTS, samples=4, max_new_tokens=NEW, seed=5).completions
    other = sample(student, PROMPTS, samples=4, max_new_tokens=NEW, seed=6).completions
    assert texts(first) != texts(other)
    assert len({tuple(text) for text in texts(first)[:4]}) > 1


def test_stop_reasons_and_lengths(student: LanguageModel):
    written = sample(student, PROMPTS, samples=20, max_new_tokens=NEW, seed=8).completions
    assert {StopReason.STOP, StopReason.LENGTH} == set(written.stop)
    for text, stop in zip(texts(written), written.stop, strict=True):
        assert 1 <= len(text) <= NEW
        assert 2 not in text[:-1]
        assert (text[-1] == 2) == (stop == StopReason.STOP)
        assert stop == StopReason.STOP or len(text) == NEW


def test_padding_is_by_length_where_the_pad_id_is_a_stop_id(student: LanguageModel):
    same = LanguageModel(student.module, student.tokenizer, (2,), 2, 2, 32, "test")
    written = sample(same, PROMPTS, samples=20, max_new_tokens=NEW, seed=8).completions
    stopped = [stop == StopReason.STOP for stop in written.stop]
    ends = written.tokens.gather(1, written.lengths[:, None] - 1)[:, 0]
    assert bool((ends[torch.tensor(stopped)] == 2).all())
    assert written.n_tokens == int(written.mask.sum()) == int(written.lengths.sum())


def test_a_one_token_completion_is_possible(student: LanguageModel):
    written = sample(student, PROMPTS, max_new_tokens=1, seed=0).completions
    assert written.lengths.tolist() == [1, 1, 1, 1]


def test_ids_beyond_the_effective_vocabulary_are_never_written(student: LanguageModel):
    cut = LanguageModel(student.module, student.tokenizer, (2,), 2, 0, 10, "test")
    written = sample(cut, PROMPTS, samples=10, max_new_tokens=NEW, seed=0).completions
    assert int(written.tokens.max()) < 10


def test_entropy_is_the_mean_over_written_positions(student: LanguageModel):
    written = sample(student, PROMPTS, temperature=0.5, max_new_tokens=NEW, seed=9, entropy=True)
    assert written.entropy is not None
    for row, text in enumerate(texts(written.completions)):
        ids = torch.tensor([PROMPTS[row] + text])
        with torch.no_grad():
            logits = student.module(ids).logits[0, len(PROMPTS[row]) - 1 : -1]
        law = logits.log_softmax(-1)
        expected = float(-(law.exp() * law).sum(-1).mean())
        assert float(written.entropy[row]) == pytest.approx(expected, abs=1e-6)


def test_a_module_in_train_mode_samples_without_dropout_and_stays_in_it():
    from transformers import GPT2Config, GPT2LMHeadModel

    from fractionate.rng import borrow_global

    config = GPT2Config(vocab_size=32, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    with borrow_global(0, "dropout"):
        module = GPT2LMHeadModel(config).train()
    model = LanguageModel(module, None, (2,), 2, 0, 32, "test")  # type: ignore[arg-type]
    first = sample(model, PROMPTS, max_new_tokens=NEW, seed=0).completions
    again = sample(model, PROMPTS, max_new_tokens=NEW, seed=0).completions
    assert torch.equal(first.tokens, again.tokens)
    assert module.training


@pytest.mark.parametrize(
    ("prompts", "new", "match"),
    [([], 4, "at least one"), ([[1]], 0, "max_new_tokens"), ([[1], []], 4, "no token")],
)
def test_nothing_to_write_is_an_error(student: LanguageModel, prompts, new: int, match: str):
    with pytest.raises(ValueError, match=match):
        sample(student, prompts, max_new_tokens=new, seed=0)


def test_models_of_different_vocabularies_are_refused(student: LanguageModel):
    cut = LanguageModel(student.module, student.tokenizer, (2,), 2, 0, 10, "test")
    with pytest.raises(ValueError, match="align"):
        Decoder([Speaker(student, [[1]]), Speaker(cut, [[1]])], max_new_tokens=3, seed=0)
