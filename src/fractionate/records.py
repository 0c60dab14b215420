"""What a run leaves behind: one record per optimizer step, one per evaluated item.

Records are plain frozen dataclasses of numbers and short strings. They hold nothing that depends on
the machine or the clock, so a repeated run writes the same bytes; timings live elsewhere.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar


class StopReason(enum.StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


class Source(enum.IntEnum):
    """Who wrote a token."""

    STUDENT = 0
    TEACHER = 1
    MIXTURE = 2
    DATASET = 3


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step of one cell.

    Divergences, entropies and norms are means over completion tokens at the loss temperatures, in
    nats, unless they say otherwise; `grad_norm` is taken before clipping.

    Attributes:
        step: 1 for the first update.
        lr: Learning rate of this update.
        loss: The reduced loss, with the method's weights and denominator, in nats.
        grad_norm: Global L2 norm over all trained parameters.
        clip_coefficient: Factor that clipping applied; 1 if it did not bind.
        forward_kl: KL(teacher || student).
        reverse_kl: KL(student || teacher).
        teacher_entropy: H(teacher).
        student_entropy: H(student).
        cross_entropy: CE(teacher, student).
        forward_grad_norm: Mean of ||q - p|| per token.
        forward_grad_norm_p99: Its 99th percentile.
        reverse_grad_norm: Mean of ||q * (r - R)|| per token.
        reverse_grad_norm_p99: Its 99th percentile.
        log_ratio_range_p99: 99th percentile of max r - min r per token.
        log_ratio_range_max: Its maximum.
        teacher_log_likelihood: Mean log-probability of the rollout's tokens under the teacher at
            temperature 1.
        student_log_likelihood: The same under the student.
        completions: Completions in the step.
        empty_completions: Completions without a token in the loss.
        finished: Completions that ended with a stop token.
        mean_length: Mean completion length in tokens, stop token included.
        tokens_generated: Tokens decoded for this step by this cell.
        tokens_scored: Tokens that the teacher scored for this step in this cell.
        tokens_trained: Tokens in the loss.
        prompt_tokens: Prompt tokens of the step, in the student's context.
        bound_violations: Positions looked at whose gradients exceed a bound that holds for any two
            laws (`losses.bounds`): 0, unless the arithmetic is broken.
        stale_weight: Mean weight of the completions that an older student wrote; none without a
            lag, as the next three.
        stale_clipped: Share of tokens whose ratio of present to older law met the cap.
        stale_kl: Estimate of KL(older student || present student) per token, from the rollout's own
            tokens that the present nucleus holds; none if it holds none.
        stale_outside: Share of tokens that the present nucleus leaves out: infinite KL there.
        profile: By bin of completion positions, where `diagnostics.bins` asks for it: means of
            "forward_kl", "cross_entropy", "teacher_entropy" and "student_entropy" in nats (0 where
            a bin is empty), and "tokens", the positions that they rest on.
    """

    step: int
    lr: float
    loss: float
    grad_norm: float
    clip_coefficient: float
    forward_kl: float | None
    reverse_kl: float | None
    teacher_entropy: float | None
    student_entropy: float | None
    cross_entropy: float | None
    forward_grad_norm: float | None
    forward_grad_norm_p99: float | None
    reverse_grad_norm: float | None
    reverse_grad_norm_p99: float | None
    log_ratio_range_p99: float | None
    log_ratio_range_max: float | None
    teacher_log_likelihood: float | None
    student_log_likelihood: float | None
    completions: int
    empty_completions: int
    finished: int
    mean_length: float
    tokens_generated: int
    tokens_scored: int
    tokens_trained: int
    prompt_tokens: int = 0
    bound_violations: int | None = None
    stale_weight: float | None = None
    stale_clipped: float | None = None
    stale_kl: float | None = None
    profile: Mapping[str, Sequence[float]] | None = None
    stale_outside: float | None = None


@dataclass(frozen=True)
class EvalRecord:
    """One item under one condition, its samples counted.

    Attributes:
        suite: What was measured: "accuracy", "coverage", "harder", "skill:add", "kl_to_base",
            "kl_to_teacher", "benchmark:ifeval", "resampled", "gradient_...", "policy_tv...".
        item: `Problem.key`; pairs arms by item.
        temperature: Of the sampler.
        samples: Completions sampled.
        correct: How many of them are right.
        distinct: How many different right solutions there are among them.
        unanswered: Completions without a parsable answer; they count as wrong.
        truncated: Completions that met the length limit; they count as wrong unless answered.
        tokens: Completion tokens, summed over samples.
        entropy: Mean entropy of the sampled model over the generated positions at temperature 1,
            in nats; none where it was not measured.
        value: The measurement of suites that do not count answers: a KL in nats per token, the
            score of a benchmark's item, the teacher's entropy of a resampled completion.
        reasons: How often each grading reason occurred.
    """

    suite: str
    item: str
    temperature: float
    samples: int
    correct: int
    distinct: int
    unanswered: int
    truncated: int
    tokens: int
    entropy: float | None = None
    value: float | None = None
    reasons: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])


@dataclass(frozen=True)
class WeightRecord:
    """How far a cell's weights moved from its base.

    Attributes:
        parameters: Parameters compared, tied tensors once.
        unmoved: Share of parameters with |delta| strictly below a threshold, by threshold
            (written with `%g`; "0" means exactly equal).
        unmoved_inclusive: The same with |delta| <= threshold.
        unmoved_relative: Share with |delta| <= 1e-3 * max(|before|, |after|).
        by_layer: Share unmoved at 1e-6, by layer ("0", "1", ..., "embedding", "norm", "head").
        by_matrix: Share unmoved at 1e-6, by matrix type ("q", "k", ..., "embedding").
        rounding_null: Share that rounding alone keeps unmoved, by threshold: a simulation of Adam
            on these weights without a model.
        rounding_bound: The analytic census |w| >= w_max(lr) of the same.
        delta_l2: Norm of the update.
        relative_l1: Sum |delta| / sum |before|.
    """

    parameters: int
    unmoved: Mapping[str, float]
    unmoved_inclusive: Mapping[str, float]
    unmoved_relative: float
    by_layer: Mapping[str, float]
    by_matrix: Mapping[str, float]
    rounding_null: Mapping[str, float]
    rounding_bound: float
    delta_l2: float
    relative_l1: float


@dataclass(frozen=True)
class RlvrRecord:
    """One update of GRPO: of a distilled student (RLVR), or of a teacher.

    Rewards and counts are those of the completions sampled since the last record: none, if the
    update trained on earlier ones only.

    Attributes:
        step: 1 for the first update.
        lr: Learning rate of this update.
        loss: The clipped objective, negated: a mean over completion tokens.
        grad_norm: Global L2 norm over all trained parameters, before clipping.
        completions: Completions sampled.
        reward: Their mean reward: the training reward that the paper plots.
        reward_sd: Their standard deviation (n - 1).
        correct: Completions that the verifier accepts.
        unanswered: Completions without a parsable answer.
        truncated: Completions that met the length limit.
        silent_groups: Share of groups whose rewards are all equal, which train nothing.
        mean_length: Mean completion length in tokens, stop token included.
        tokens_generated: Completion tokens sampled.
        prompt_tokens: Tokens of their prompts, each prompt once.
        entropy: Mean entropy of the sampled law over the trained tokens, in nats.
        clipped: Share of trained tokens whose ratio clipping bound.
    """

    step: int
    lr: float
    loss: float
    grad_norm: float
    completions: int
    reward: float | None
    reward_sd: float | None
    correct: int
    unanswered: int
    truncated: int
    silent_groups: float | None
    mean_length: float | None
    tokens_generated: int
    prompt_tokens: int
    entropy: float
    clipped: float


@dataclass(frozen=True)
class SftRecord:
    """One update of a teacher's supervised fine-tuning.

    Attributes:
        step: 1 for the first update.
        lr: Learning rate of this update.
        loss: Cross-entropy of the demonstrations, mean over their tokens, in nats.
        grad_norm: Global L2 norm over all trained parameters, before clipping.
    """

    step: int
    lr: float
    loss: float
    grad_norm: float


@dataclass(frozen=True)
class CellResult:
    """Everything known of one finished cell.

    Attributes:
        cell: Short name of the cell, unique in the study.
        factors: Level label of every varied factor, by dotted path.
        seed: Replicate; cells of one seed share prompts, base and random streams.
        base: Which student base the seed uses: a block of the statistics.
        steps: One record per update.
        evaluations: Items by the step at which they were evaluated; 0 is the untrained student.
        weights: Update records by step.
        seconds: Wall time of training and evaluation; outside every comparison of results.
        flops: Floating-point operations, counted from the tokens and the model sizes.
        shared_flops: This cell's share of stages that several cells use.
        rlvr: One record per update of the reinforcement learning that followed, if any.
        rlvr_evaluations: Held-out items of its task by the update after which they were evaluated;
            0 is the distilled student.
    """

    cell: str
    factors: Mapping[str, str]
    seed: int
    base: int
    steps: tuple[StepRecord, ...]
    evaluations: Mapping[int, tuple[EvalRecord, ...]]
    weights: Mapping[int, WeightRecord]
    seconds: float | None = None
    flops: float | None = None
    shared_flops: float | None = None
    rlvr: tuple[RlvrRecord, ...] = ()
    rlvr_evaluations: Mapping[int, tuple[EvalRecord, ...]] = dataclasses.field(
        default_factory=dict[int, tuple[EvalRecord, ...]]
    )


AnyRecord = StepRecord | EvalRecord | RlvrRecord | SftRecord
Record = TypeVar("Record", StepRecord, EvalRecord, RlvrRecord, SftRecord)


def encode(record: AnyRecord) -> str:
    """One JSON line. Not-a-number has no place in a record.

    Raises:
        ValueError: A field is NaN or infinite; names it.
    """
    fields = dataclasses.asdict(record)
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"record field '{name}' is {value}: a record holds finite numbers")
    return json.dumps(fields, allow_nan=False, separators=(",", ":"))


def decode(line: str, kind: type[Record]) -> Record:
    """The record of one JSON line; fields added later take their defaults."""
    return kind(**json.loads(line))


def write_jsonl(path: Path, records: Iterable[AnyRecord]) -> None:
    """Write records, one JSON line each."""
    path.write_text("".join(encode(record) + "\n" for record in records), encoding="utf-8")


def read_jsonl(path: Path, kind: type[Record]) -> list[Record]:
    """Read all records of a file."""
    return [decode(line, kind) for line in _lines(path)]


def read_dicts(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file as plain dictionaries."""
    return [json.loads(line) for line in _lines(path)]


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield line
