"""Synthetic studies with a known answer: records as a run would leave them, effects planted."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fractionate.config import Study
from fractionate.records import CellResult, EvalRecord, StepRecord, WeightRecord
from fractionate.rng import stream

Generator = np.random.Generator
Effects = Mapping[str, float]

ROLLOUT, KL, RATE = "method.rollout", "method.divergence", "optimizer.lr"
FACTORS: dict[str, tuple[str, ...]] = {
    ROLLOUT: ("student", "teacher"),
    KL: ("forward", "reverse"),
    RATE: ("0.0005", "0.0025"),
}
SUITES = (
    ("accuracy", 0.5, 1, 0.0),
    ("coverage", 0.5, 16, 0.0),
    ("coverage", 1.0, 16, -0.03),
    ("harder", 0.5, 1, -0.3),
)
"""Suite, temperature, samples per item, and what is added to the accuracy planted."""
SKILLS = ("add", "cmp", "copy", "parity")


def study(**changes: object) -> Study:
    """A study file that fits `FACTORS`."""
    tree = {
        "name": "planted",
        "world": {"kind": "sandbox"},
        "vary": {
            ROLLOUT: [{"kind": "student"}, {"kind": "teacher"}],
            KL: [{"kind": "forward"}, {"kind": "reverse"}],
            RATE: [5e-4, 2.5e-3],
        },
        "rates": {"low": 5e-4, "high": 2.5e-3},
        "seeds": [42, 43],
        "evaluate": {"coverage": {}, "forgetting": "skills", "harder": {}},
        **changes,
    }
    return Study.model_validate(tree)


def planted(
    *,
    accuracy: Effects | None = None,
    forgetting: Effects | None = None,
    sparsity: Effects | None = None,
    seeds: Sequence[int] = (42, 43),
    factors: Mapping[str, tuple[str, ...]] = FACTORS,
    items: int = 200,
    seed_sd: float = 0.01,
    at: Sequence[int] = (0, 150),
    steps: int = 30,
    draw: int = 0,
    full: bool = True,
) -> tuple[CellResult, ...]:
    """Cells of a full factorial.

    Args:
        accuracy: By factor (two adjacent levels differ by it; "a:b" is their interaction), a share.
        forgetting: The same of the drop in prior skills.
        sparsity: The same of the share of unmoved parameters.
        seeds: Replicates.
        factors: Level labels.
        items: Items of every suite.
        seed_sd: Noise of a run beyond its items, a share.
        at: Steps evaluated.
        steps: Step records.
        draw: Another draw of the noise.
        full: With coverage, harder task, skills and drift; otherwise accuracy alone.
    """
    hardness = stream(draw, "items").normal(0, 1.5, items)
    cells = []
    for levels in itertools.product(*factors.values()):
        labels = dict(zip(factors, levels, strict=True))
        codes = {
            name: factors[name].index(label) - (len(factors[name]) - 1) / 2
            for name, label in labels.items()
        }
        for seed in seeds:
            rng = stream(seed, "cell", draw, *levels)
            skill = _score(0.6, accuracy, codes) + rng.normal(0, seed_sd)
            drop = _score(0.1, forgetting, codes) + abs(rng.normal(0, seed_sd))
            kept = _score(0.3, sparsity, codes) + rng.normal(0, 0.003)
            ends = {step: (skill, drop) if step else (0.25, 0.0) for step in at}
            evaluations = {
                step: _evaluation(rng, *end, hardness, full) for step, end in ends.items()
            }
            name = "-".join([*levels, f"s{seed}"])
            cells.append(
                CellResult(
                    cell=name,
                    factors=labels,
                    seed=seed,
                    base=seed % 3,
                    steps=_steps(rng, labels, steps),
                    evaluations=evaluations,
                    weights={max(at): _weights(kept)},
                    seconds=20.0 if labels.get(ROLLOUT) == "teacher" else 40.0,
                    flops=1e12 if labels.get(ROLLOUT) == "teacher" else 2e12,
                    shared_flops=1e11,
                )
            )
    return tuple(cells)


def _score(centre: float, effects: Effects | None, codes: Mapping[str, float]) -> float:
    total = centre
    for name, effect in (effects or {}).items():
        parts = [codes[part] for part in name.split(":")]
        total += effect * float(np.prod(parts)) * 2 ** (len(parts) - 1)
    return total


def _shares(mean: float, hardness: NDArray[np.float64]) -> NDArray[np.float64]:
    """Item probabilities of roughly the wanted mean."""
    mean = min(max(mean, 0.02), 0.98)
    offsets = np.linspace(-8, 8, 161)
    means = (1 / (1 + np.exp(hardness[None, :] - offsets[:, None]))).mean(axis=1)
    return 1 / (1 + np.exp(hardness - np.interp(mean, means, offsets)))


def _evaluation(
    rng: Generator,
    accuracy: float,
    drop: float,
    hardness: NDArray[np.float64],
    full: bool,
) -> tuple[EvalRecord, ...]:
    records = []
    for suite, temperature, samples, shift in SUITES if full else SUITES[:1]:
        for item, share in enumerate(_shares(accuracy + shift, hardness)):
            correct = int(rng.binomial(samples, share))
            records.append(
                EvalRecord(
                    suite=suite,
                    item=f"item{item}",
                    temperature=temperature,
                    samples=samples,
                    correct=correct,
                    distinct=min(correct, 2),
                    unanswered=int(rng.binomial(samples - correct, 0.3)),
                    truncated=int(rng.binomial(samples - correct, 0.2)),
                    tokens=int(samples * rng.integers(30, 60)),
                    entropy=float(rng.uniform(0.1, 0.3)),
                )
            )
    if not full:
        return tuple(records)
    for skill in SKILLS:
        records += [
            EvalRecord(
                suite=f"skill:{skill}",
                item=f"{skill}{item}",
                temperature=0.0,
                samples=1,
                correct=int(rng.random() < min(max(0.97 - drop, 0.0), 1.0)),
                distinct=0,
                unanswered=0,
                truncated=0,
                tokens=2,
            )
            for item in range(50)
        ]
    for suite in ("kl_to_base", "kl_to_teacher"):
        value = float(rng.uniform(0.01, 0.2))
        records.append(EvalRecord(suite, "item0", 1.0, 1, 0, 0, 0, 0, 40, None, value))
    return tuple(records)


def _steps(rng: Generator, labels: Mapping[str, str], steps: int) -> tuple[StepRecord, ...]:
    reverse = labels.get(KL) == "reverse"
    on_policy = labels.get(ROLLOUT, "student") == "student"
    records = []
    for step in range(1, steps + 1):
        norm = float((3.0 if reverse else 0.4) * rng.lognormal(0, 0.3))
        kl = 0.5 / step**0.5
        records.append(
            StepRecord(
                step=step,
                lr=float(labels.get(RATE, "0.0005")),
                loss=kl,
                grad_norm=norm,
                clip_coefficient=min(1.0, 1.0 / norm),
                forward_kl=kl,
                reverse_kl=kl * 0.9,
                teacher_entropy=0.2,
                student_entropy=0.3,
                cross_entropy=kl + 0.2,
                forward_grad_norm=0.3,
                forward_grad_norm_p99=0.9,
                reverse_grad_norm=0.5,
                reverse_grad_norm_p99=3.0,
                log_ratio_range_p99=8.0 + norm,
                log_ratio_range_max=20.0,
                teacher_log_likelihood=-0.8,
                student_log_likelihood=-0.3,
                completions=32,
                empty_completions=0,
                finished=30,
                mean_length=40.0,
                tokens_generated=1280 if on_policy else 0,
                tokens_scored=1500,
                tokens_trained=1280,
                prompt_tokens=320,
            )
        )
    return tuple(records)


def _weights(unmoved: float) -> WeightRecord:
    unmoved = min(max(unmoved, 0.0), 1.0)
    taus = ("0", "1e-08", "1e-06", "1e-05")
    shares = {tau: min(1.0, unmoved + 0.001 * i) for i, tau in enumerate(taus)}
    return WeightRecord(
        parameters=168_384,
        unmoved=shares,
        unmoved_inclusive=shares,
        unmoved_relative=unmoved,
        by_layer={"0": unmoved, "embedding": unmoved},
        by_matrix={"q": unmoved, "embedding": unmoved},
        rounding_null={tau: min(1.0, 0.9 * share) for tau, share in shares.items()},
        rounding_bound=0.8 * unmoved,
        delta_l2=3.0,
        relative_l1=0.05,
    )


def scored(
    levels: Mapping[str, str], seed: int, correct: Sequence[int], **more: object
) -> CellResult:
    """A cell of which only the answers to its items are known: 1 right, 0 wrong."""
    records = tuple(
        EvalRecord("accuracy", f"item{i}", 0.5, 1, c, c, 0, 0, 40) for i, c in enumerate(correct)
    )
    return CellResult(
        cell="-".join([*levels.values(), f"s{seed}"]),
        factors=levels,
        seed=seed,
        base=0,
        steps=(),
        evaluations={150: records},
        weights={},
        **more,
    )
