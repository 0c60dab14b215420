"""Claims that need what a single grid does not have, on planted effects and on planted nulls."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from planted import KL, RATE, ROLLOUT, planted, study

from fractionate.analysis.claims import TESTS, Claim, decided, judge_claims
from fractionate.analysis.claims_theory import construction
from fractionate.analysis.runs import Runs, gather
from fractionate.records import CellResult, EvalRecord, RlvrRecord
from fractionate.rng import stream

POLICIES, KLS, TWO = ("student", "teacher"), ("forward", "reverse"), ("0.0005", "0.0025")
GRID = {ROLLOUT: POLICIES, KL: KLS, RATE: TWO}
SPECTRUM = {ROLLOUT: tuple(f"spectrum(lam={x})" for x in (-1, 0, 1)), KL: KLS, RATE: TWO}
CLIP, SWAP = "optimizer.clip", "method.temperature"
SEEDS = (42, 43, 44, 45, 46)
Change = Callable[[CellResult], CellResult]


def runs_of(
    factors: dict[str, tuple[str, ...]],
    change: Change = lambda cell: cell,
    *,
    name: str = "planted",
    world: dict[str, str] | None = None,
    **how: object,
) -> Runs:
    """A planted study, its cells changed."""
    how = {"seeds": SEEDS, "items": 100, "steps": 12, "full": False, **how}
    cells = [change(cell) for cell in planted(factors=factors, **how)]
    settings = {"name": name, "world": {"kind": "sandbox", **(world or {})}}
    return gather(cells, study=study(seeds=list(SEEDS), **settings))


def claims(*studies: Runs) -> dict[str, Claim]:
    return {claim.key: claim for claim in judge_claims(studies)}


def verdict(key: str, *studies: Runs) -> str:
    return claims(*studies)[key].verdict


def test_there_are_forty_rules_in_words():
    assert list(TESTS) == [f"C{i}" for i in range(1, 41)]
    assert all(len(rule.text) > 20 for rule in TESTS.values())


def test_what_cannot_be_tested_says_which_experiment_can():
    found = claims(runs_of(GRID))
    assert found["C22"].untestable is not None
    assert found["C22"].experiment == "E4"
    assert found["C19"].untestable == "no cell was trained further by RLVR"
    assert found["C22"].verdict == "no verdict"


def test_a_claim_goes_to_the_study_that_has_what_it_needs():
    found = claims(runs_of(GRID, name="grid"), runs_of(SPECTRUM, name="spectrum"))
    assert found["C2"].source == "grid"
    assert found["C13"].source == "spectrum"
    assert decided(tuple(found.values())) == sum(
        claim.verdict in ("holds", "does not hold") for claim in found.values()
    )


def test_detectable_shrinks_with_seeds():
    few, many = (claims(runs_of(GRID, seeds=SEEDS[:n]))["C2"].finding for n in (2, 5))
    assert few is not None
    assert many is not None
    assert few.detectable is not None
    assert many.detectable is not None
    assert many.detectable < few.detectable
    assert many.unit == "pp"


# ---------------------------------------------------------------- variants of the design


@pytest.mark.parametrize(
    ("effects", "found"),
    [
        ({CLIP: -0.2, f"{KL}:{CLIP}": -0.2}, "holds"),
        ({CLIP: -0.2, f"{KL}:{CLIP}": 0.2}, "does not hold"),
        ({}, "cannot be told"),
    ],
)
def test_clipping(effects: dict[str, float], found: str):
    factors = {ROLLOUT: POLICIES, KL: KLS, RATE: ("0.0005", "0.002"), CLIP: ("1", "none")}
    assert verdict("C22", runs_of(factors, accuracy=effects)) == found


@pytest.mark.slow
def test_sampled_kl_has_the_same_picture_or_another():
    factors = {**GRID, "method.support": ("full", "sampled")}
    same = {RATE: 0.3}
    how = {"accuracy": {f"{KL}:{RATE}": 0.2}, "sparsity": {RATE: -0.2}, "full": True, "items": 50}
    assert verdict("C23", runs_of(factors, forgetting=same, **how)) == "holds"
    turned = {"method.support": 0.0, f"{RATE}:method.support": -0.6, RATE: 0.3}
    assert verdict("C23", runs_of(factors, forgetting=turned, **how)) != "holds"


SWAPPED = {**GRID, SWAP: ("base", "student_rollout=0.5,teacher_rollout=1")}


def test_forward_kl_and_the_sampling_temperature():
    still = runs_of(SWAPPED, items=1500, seed_sd=0.001)
    assert verdict("C26", still) == "holds"
    assert verdict("C26", runs_of(SWAPPED, accuracy={SWAP: 0.2})) == "does not hold"
    assert verdict("C27", runs_of(SWAPPED, accuracy={SWAP: 0.2})) == "does not hold"


@pytest.mark.slow
def test_the_second_family():
    second = {"family": "qwen"}
    first = runs_of(GRID, name="first")
    gains = runs_of(GRID, name="second", world=second, full=True, forgetting={RATE: 0.3}, items=30)
    found = claims(first, gains)
    assert found["C34"].verdict == "holds"
    slope = runs_of(
        SPECTRUM, name="along", world=second, full=True, items=10, forgetting={ROLLOUT: 0.1}
    )
    assert verdict("C33", first, slope) == "holds"
    flat = runs_of(SPECTRUM, name="along", world=second, full=True, items=10, draw=1)
    assert verdict("C33", first, flat) != "holds"
    assert claims(first)["C33"].untestable is not None


# ---------------------------------------------------------------- coverage, harder task, RLVR


@pytest.mark.slow
def test_coverage_along_the_spectrum():
    null = runs_of(SPECTRUM, full=True, items=60)
    assert verdict("C16", null) in ("cannot be told", "does not hold")
    gap = runs_of(SPECTRUM, full=True, items=60, accuracy={KL: 0.2})
    assert verdict("C16", gap) == "does not hold"


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "found"), [(0.1, "holds"), (-0.1, "does not hold")])
def test_the_harder_task(effect: float, found: str):
    runs = runs_of(SPECTRUM, full=True, items=100, accuracy={ROLLOUT: effect}, seeds=SEEDS[:3])
    assert verdict("C17", runs) == found


def followed(
    reward: Callable[[CellResult, np.ndarray], np.ndarray], start: dict[str, float]
) -> Change:
    """RLVR of 40 updates, a reward every update, and held-out accuracy before the first."""

    def change(cell: CellResult) -> CellResult:
        curve = reward(cell, np.linspace(0, 1, 40)) + stream(cell.seed, cell.cell).normal(
            0, 0.01, 40
        )
        right = round(100 * start[cell.factors[ROLLOUT]]) + int(
            stream(cell.seed, *cell.factors.values()).integers(5)
        )
        items = tuple(
            EvalRecord("accuracy", f"i{i}", 0.5, 1, int(i < right), 0, 0, 0, 9) for i in range(100)
        )
        updates = tuple(
            RlvrRecord(
                step=i + 1, lr=1e-3, loss=0.0, grad_norm=1.0, completions=48, reward=float(value),
                reward_sd=1.0, correct=1, unanswered=0, truncated=0, silent_groups=0.0,
                mean_length=9.0, tokens_generated=9, prompt_tokens=9, entropy=1.0, clipped=0.0,
            )
            for i, value in enumerate(curve)
        )  # fmt: skip
        return dataclasses.replace(cell, rlvr=updates, rlvr_evaluations={0: items})

    return change


def test_a_head_start_that_is_lost_and_one_that_lasts():
    def turned(cell: CellResult, x: np.ndarray) -> np.ndarray:
        return x * (2.0 if cell.factors[ROLLOUT] == "teacher" else 0.5)

    def lasting(cell: CellResult, x: np.ndarray) -> np.ndarray:
        return x * (0.5 if cell.factors[ROLLOUT] == "teacher" else 2.0)

    start = {"student": 0.4, "teacher": 0.05}
    assert verdict("C18", runs_of(GRID, followed(turned, start))) == "holds"
    assert verdict("C18", runs_of(GRID, followed(lasting, start))) == "does not hold"


def test_a_collapse_of_reverse_students():
    start = {"student": 0.2, "teacher": 0.2}

    def collapsing(cell: CellResult, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0.5, x, 0.05) if cell.factors[KL] == "reverse" else x

    assert verdict("C19", runs_of(GRID, followed(collapsing, start))) == "holds"
    assert (
        verdict("C19", runs_of(GRID, followed(lambda _, x: np.minimum(x, 0.5), start)))
        == "does not hold"
    )


# ---------------------------------------------------------------- style, the trap, theory


def styled(share: Callable[[CellResult], float]) -> Change:
    def change(cell: CellResult) -> CellResult:
        right = round(200 * share(cell))
        records = tuple(
            EvalRecord("style", f"s{i}", 0.5, 1, int(i < right), 0, 0, 0, 9) for i in range(200)
        )
        last = max(cell.evaluations)
        evaluations = {**cell.evaluations, last: (*cell.evaluations[last], *records)}
        return dataclasses.replace(cell, evaluations=evaluations)

    return change


def resists(cell: CellResult) -> bool:
    return (cell.factors[ROLLOUT], cell.factors[KL]) == ("student", "reverse")


@pytest.mark.parametrize(
    ("shares", "found"),
    [((0.05, 0.97), "holds"), ((0.9, 0.97), "does not hold"), ((0.5, 0.97), "cannot be told")],
)
def test_style(shares: tuple[float, float], found: str):
    change = styled(lambda cell: shares[not resists(cell)])
    assert verdict("C25", runs_of(GRID, change, seeds=(42,))) == found


def with_steps(fields: Callable[[CellResult, int], dict[str, float]]) -> Change:
    def change(cell: CellResult) -> CellResult:
        steps = [dataclasses.replace(s, **fields(cell, i)) for i, s in enumerate(cell.steps)]
        return dataclasses.replace(cell, steps=tuple(steps))

    return change


@pytest.mark.parametrize(("entropy", "found"), [(4.0, "holds"), (0.5, "does not hold")])
def test_entropies_behind_a_small_divergence(entropy: float, found: str):
    change = with_steps(
        lambda cell, i: {
            "forward_kl": 0.01,
            "teacher_entropy": entropy + 0.001 * cell.seed * (i + 1),
            "cross_entropy": entropy + 0.01 + 0.001 * cell.seed,
        }
    )
    assert verdict("C28", runs_of(GRID, change)) == found


def test_the_confidence_of_the_student_dips():
    def dip(cell: CellResult, i: int) -> dict[str, float]:
        return {"student_log_likelihood": -0.2 - (1.0 + 0.01 * cell.seed) * (8 <= i < 20)}

    assert verdict("C32", runs_of(GRID, with_steps(dip), steps=40)) == "holds"

    def flat(cell: CellResult, i: int) -> dict[str, float]:
        return {"student_log_likelihood": -0.2 - 0.001 * ((i * cell.seed) % 3)}

    assert verdict("C32", runs_of(GRID, with_steps(flat), steps=40)) == "does not hold"


@pytest.mark.slow
def test_an_early_checkpoint():
    runs = runs_of(GRID, full=True, items=100, at=(0, 50, 150), forgetting={RATE: 0.3})
    assert verdict("C30", runs) == "holds"


def test_a_broken_bound_is_noticed():
    found = claims(runs_of(GRID, with_steps(lambda _, __: {"forward_grad_norm_p99": 1.5})))
    assert found["C37"].verdict == "does not hold"
    found = claims(runs_of(GRID, with_steps(lambda _, __: {"reverse_grad_norm_p99": 9.0})))
    assert found["C38"].verdict == "does not hold"


@pytest.mark.parametrize(
    ("delta", "difference"), [(1e-2, 0.081231), (1e-4, 0.162816), (1e-8, 0.325635)]
)
def test_the_construction_of_theorem_c2(delta: float, difference: float):
    computed, formula = construction(delta)
    assert computed == pytest.approx(difference, abs=5e-7)
    assert formula == pytest.approx(computed, rel=1e-9)


def test_the_published_rates_need_no_runs():
    finding = claims(runs_of(GRID))["C40"].finding
    assert finding is not None
    assert "10.0" in finding.text


@pytest.mark.slow
def test_nothing_is_claimed_of_differences_in_a_null(null_runs: Runs):
    quiet: Sequence[str] = ("C3", "C6", "C7", "C14", "C17", "C18", "C19", "C22", "C25", "C33")
    found = claims(null_runs)
    assert not [key for key in quiet if found[key].verdict == "holds"]
