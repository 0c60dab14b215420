import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fractionate.models.sandbox import STUDENT, new_model, shipped_folder
from fractionate.rng import stream
from fractionate.tasks.sandbox.vocabulary import BOS_ID, PAD_ID
from fractionate.teachers.sandbox import (
    CHECKPOINT,
    Progress,
    build_model,
    learning_rate,
    phase_of,
    scaled_steps,
    weighted_loss,
)
from fractionate.teachers.sandbox_data import SOURCES, Packed, packed_batch
from fractionate.teachers.sandbox_evaluation import (
    CountdownScore,
    ModelScores,
    Plan,
    evaluate_model,
    sample,
)
from fractionate.teachers.sandbox_origin import gather_evaluations, write_origin
from fractionate.teachers.sandbox_recipes import RECIPES, Mix, Stage

MIX = Mix(skills=0.4, op=0.1, three=0.2, weak=0.1, whole=0.1, parts=0.1)
SCALE = 0.0012
SMALL = 4 / 2_211


def _batch(seed: int = 0, rows: int = 4) -> Packed:
    return packed_batch(MIX, "cyc", rows, 128, stream(seed, "test"))


def _segments(batch: Packed, row: int) -> list[slice]:
    starts = torch.nonzero(batch.tokens[row] == BOS_ID)[:, 0].tolist()
    end = int((batch.tokens[row] != PAD_ID).sum())
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], end], strict=True)]


def test_rows_hold_whole_examples_with_positions_of_their_own() -> None:
    batch = _batch()
    for row in range(len(batch.tokens)):
        for segment in _segments(batch, row):
            length = segment.stop - segment.start
            assert batch.positions[row, segment].tolist() == list(range(length))
            assert batch.weights[row, segment.start] == 0
            assert batch.weights[row, segment].sum() > 0
    assert (batch.weights[batch.tokens == PAD_ID] == 0).all()
    assert (batch.tokens != PAD_ID).float().mean() > 0.7


def test_packed_logits_equal_those_of_the_examples_alone() -> None:
    batch = _batch()
    model = new_model(STUDENT, seed=0).eval()
    with torch.no_grad():
        packed = model(
            input_ids=batch.tokens, attention_mask=batch.mask, position_ids=batch.positions
        ).logits
        for row in range(2):
            for segment in _segments(batch, row):
                alone = model(input_ids=batch.tokens[row, segment][None]).logits[0]
                torch.testing.assert_close(packed[row, segment], alone, atol=1e-5, rtol=1e-4)


def test_the_loss_is_the_weighted_mean_over_examples() -> None:
    batch = _batch()
    model = new_model(STUDENT, seed=0).eval()
    total = weight = 0.0
    with torch.no_grad():
        for row in range(len(batch.tokens)):
            for segment in _segments(batch, row):
                tokens = batch.tokens[row, segment]
                log_probs = model(input_ids=tokens[None]).logits[0].log_softmax(dim=-1)
                scores = log_probs[:-1].gather(1, tokens[1:, None])[:, 0]
                weights = batch.weights[row, segment][1:]
                total -= float((scores * weights).sum())
                weight += float(weights.sum())
        assert weighted_loss(model, batch).item() == pytest.approx(total / weight, rel=1e-5)


def test_a_batch_is_a_function_of_its_stream() -> None:
    first, again, other = _batch(1), _batch(1), _batch(2)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_every_field_of_a_mix_has_a_source() -> None:
    assert set(SOURCES) == {field.name for field in fields(Mix)}


@pytest.mark.parametrize("name", RECIPES)
def test_mixes_sum_to_one_and_phases_begin_at_zero_in_order(name: str) -> None:
    for stage in RECIPES[name].stages:
        begins = [phase.begins for phase in stage.phases]
        assert begins[0] == 0
        assert begins == sorted(begins)
        for phase in stage.phases:
            shares = [getattr(phase.mix, field.name) for field in fields(Mix)]
            assert sum(shares) == pytest.approx(1.0)


def test_students_differ_only_after_their_common_stages() -> None:
    stages = [RECIPES[name].stages for name in ("components", "latent", "naive")]
    assert stages[0][:2] == stages[1][:2] == stages[2][:2]
    assert len({found[2].name for found in stages}) == 3


def test_no_student_sees_a_right_trace_under_the_tag_of_countdown() -> None:
    for name in ("components", "latent", "naive"):
        for stage in RECIPES[name].stages:
            for phase in stage.phases:
                assert phase.mix.three == phase.mix.four == 0
                assert name == "latent" or phase.mix.whole == 0
                assert name == "components" or phase.mix.parts == 0


def test_the_rate_warms_up_stays_and_falls_to_its_last_value() -> None:
    stage = Stage("s", 1_000, 2.0, 0.5, 0.1, (), warm_up=100)
    assert learning_rate(stage, 0, 1_000) == pytest.approx(0.02)
    assert learning_rate(stage, 99, 1_000) == learning_rate(stage, 500, 1_000) == 2.0
    assert learning_rate(stage, 750, 1_000) == pytest.approx(2.0 * (1 - 0.9 * 0.5))
    assert learning_rate(stage, 1_000, 1_000) == pytest.approx(0.2)


def test_phases_scale_with_the_steps() -> None:
    stage = RECIPES["teacher"].stages[0]
    steps = scaled_steps(stage, 0.1)
    assert steps == 580
    assert phase_of(stage, 0, steps) is stage.phases[0]
    assert phase_of(stage, steps - 1, steps) is stage.phases[-1]


class _KilledError(Exception):
    pass


def _kill_at(stage: str, step: int) -> Callable[[Progress], None]:
    def kill(progress: Progress) -> None:
        if (progress.stage, progress.step) == (stage, step):
            raise _KilledError

    return kill


def test_a_killed_run_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractionate.teachers.sandbox.CHECKPOINT_EVERY", 2)
    monkeypatch.setitem(RECIPES, "latent", replace(RECIPES["latent"], rows=2))
    whole = build_model("latent", seed=5, out=tmp_path / "whole", steps_scale=SMALL)
    broken = tmp_path / "broken"
    for stage, step in (("skills", 3), ("format", 1), ("latent", 3)):
        with pytest.raises(_KilledError):
            build_model(
                "latent", seed=5, out=broken, steps_scale=SMALL, progress=_kill_at(stage, step)
            )
    build_model("latent", seed=5, out=broken, steps_scale=SMALL)
    expected, found = (load_file(path / "model.safetensors") for path in (whole, broken))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not (broken / CHECKPOINT).exists()


def test_a_checkpoint_of_another_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(_KilledError):
        build_model(
            "naive", seed=1, out=tmp_path, steps_scale=SCALE, progress=_kill_at("format", 1)
        )
    with pytest.raises(ValueError, match="choose another folder"):
        build_model("naive", seed=2, out=tmp_path, steps_scale=SCALE)


def test_a_bilingual_teacher_goes_on_from_the_shipped_teacher(tmp_path: Path) -> None:
    folder = build_model("bilingual", seed=0, out=tmp_path, steps_scale=1e-9)
    before = load_file(shipped_folder("teacher", 0) / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    largest = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert 0 < largest < 2e-3  # one step of AdamW at the rate 1e-3


def test_the_second_family_is_another_architecture_with_another_vocabulary(tmp_path: Path) -> None:
    folder = build_model("qwen-components", seed=0, out=tmp_path, steps_scale=1e-9)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["attention_bias"]
    assert settings["num_key_value_heads"] < settings["num_attention_heads"]
    scores = evaluate_model(folder, Plan(problems=2, samples=2, questions=2, operands=(3,)))
    assert 0 <= scores.skills_mean <= 1


def test_an_unknown_model_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="teacher, components, latent, naive"):
        build_model("component", seed=0, out=tmp_path)


def test_greedy_sampling_equals_the_argmax_of_whole_sequences() -> None:
    model = new_model(STUDENT, seed=0).eval()
    prompts = [[BOS_ID, 3, 4], [BOS_ID, 50, 7]]
    completions = sample(model, prompts, limit=6, temperature=0.0)
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        with torch.no_grad():
            greedy = model(input_ids=ids).logits[0].argmax(dim=-1).tolist()
        assert greedy[len(prompt) - 1 : -1] == completion


@pytest.mark.slow
def test_a_smaller_pair_rebuilt_from_scratch_learns(tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {"teacher": [], "components": []}
    for name, found in losses.items():
        build_model(
            name,
            seed=11,
            out=tmp_path / name,
            steps_scale=0.02,
            progress=lambda progress, found=found: found.append(progress.loss),
        )
    for found in losses.values():
        assert sum(found[-20:]) < 0.5 * sum(found[:20])
    plan = Plan(problems=20, samples=2, questions=40, temperatures=(0.5,), operands=(3,))
    scores = {name: evaluate_model(tmp_path / name, plan) for name in losses}
    # Untrained models write noise: six in ten end by chance, after seventy tokens on average.
    assert scores["components"].countdown[0].finished > 0.9
    assert scores["components"].countdown[0].mean_length < 50
    assert scores["components"].skills["parity"] > 0.6
    assert scores["teacher"].countdown[0].finished > 0.65


def test_the_origin_names_command_seed_steps_and_scores(tmp_path: Path) -> None:
    score = CountdownScore(3, 0.5, {1: 0.123456}, 1.0, 40.0, 200, 16)
    scores = ModelScores("test", (score,), {"add": 0.5, "sub": 1.0}, {"cd": 0.5})
    origin = json.loads(write_origin(tmp_path, "latent", 3, (scores,)).read_text())
    assert origin["command"] == "fractionate sandbox build latent --seed 3"
    assert origin["steps"] == {"skills": 2_211, "format": 1_612, "latent": 2_519}
    found = origin["evaluation"]["test"]
    assert found["countdown"][0]["pass_at"] == {"1": 0.1235}
    assert (found["skills_mean"], found["skills_lowest"]) == (0.75, "add")


def test_the_shipped_teacher_solves_unseen_countdown() -> None:
    plan = Plan(
        split="test", problems=25, samples=2, questions=5, temperatures=(0.5,), operands=(3,)
    )
    scores = evaluate_model(shipped_folder("teacher", 0), plan)
    assert scores.countdown[0].pass_at[1] >= 0.85
    assert scores.verdicts["cd"] >= 0.95
    assert scores.skills_mean >= 0.8


def test_evaluations_are_gathered_by_checkpoint(tmp_path: Path) -> None:
    score = CountdownScore(3, 0.5, {1: 0.25}, 1.0, 40.0, 200, 16)
    for name in ("latent", "naive"):
        (tmp_path / f"{name}-0").mkdir()
        scores = ModelScores("test", (score,), {"add": 0.5}, {"cd": 0.5})
        write_origin(tmp_path / f"{name}-0", name, 0, (scores,))
    gathered = json.loads(gather_evaluations(tmp_path).read_text())
    assert set(gathered) == {"latent-0", "naive-0"}
    assert gathered["naive-0"]["test"]["countdown"][0]["pass_at"]["1"] == 0.25


def test_gathering_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="build and evaluate"):
        gather_evaluations(tmp_path)
