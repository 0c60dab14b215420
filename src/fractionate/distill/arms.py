"""Gradients of the four basic arms at the same weights and prompts, and the policies' distance.

The arms are forward and reverse KL on rollouts of the student and of the teacher, each with the
method's own temperatures, over the full vocabulary, as a mean per completion (arXiv 2609.35259,
section 3). Nothing is updated.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.config import (
    ForwardDivergence,
    Method,
    ReverseDivergence,
    StudentRollout,
    TeacherRollout,
    Temperature,
)
from fractionate.distill.objective import Laws, Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.scoring import Scorer
from fractionate.losses import log_probs
from fractionate.losses.bounds import total_variation
from fractionate.metrics.gradients import gradient_cosines, gradient_noise, project, sequence_tv
from fractionate.models.hidden import evaluating, micro_batches
from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord
from fractionate.rng import derive_seed
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.draw import Speaker, draw

EXACT_PARAMETERS = 1 << 22
"""Gradients of at most so many parameters are kept whole, larger ones through a projection."""

TOKENS_PER_PASS = 4096
_CHUNK = 256  # positions whose whole laws are in memory at once

WRITERS = {"student": StudentRollout(), "teacher": TeacherRollout(cached=False)}
DIRECTIONS = {"forward": ForwardDivergence(), "reverse": ReverseDivergence()}


@dataclass(frozen=True)
class ArmSettings:
    """How the arms are measured.

    Attributes:
        prompts: Rollouts in one micro-gradient.
        buckets: Length of the projection of large gradients.
        temperature: Sampling and loss temperatures.
        max_new_tokens: Longest rollout.
        seed: Of the rollouts.
    """

    prompts: int
    buckets: int
    temperature: Temperature
    max_new_tokens: int
    seed: int


def measure_arms(
    student: LanguageModel,
    teacher: LanguageModel,
    prompts: Sequence[Prompt],
    settings: ArmSettings,
) -> list[EvalRecord]:
    """Norm, noise and cosines of the arms' gradients, and the total variation of the policies.

    Records, `value` being the number: suites "gradient_norm" (of the mean gradient, biased upwards
    by noise), "gradient_signal" (unbiased squared norm, which may be negative), "gradient_noise"
    (trace of the variance), "gradient_snr" (their ratio), with items "forward/student" and so on
    and the micro-gradients as `samples`; "gradient_cosine" and "gradient_cosine_debiased" with
    items "forward/student ~ reverse/student" and so on; "policy_tv:student" and
    "policy_tv:teacher" (by prompt: max(0, 1 - rho'(y) / rho(y)) of a completion of that model) and
    "policy_tv_token:..." (by prompt: mean over its tokens of the next-token total variation). A
    number that is undefined (no signal, no noise) is none.

    Args:
        student: At the weights in question; its parameters need gradients, and keep theirs.
        teacher: Frozen.
        prompts: As many as all micro-gradients of an arm take together.
        settings: How.

    Raises:
        ValueError: The prompts do not fill at least two micro-gradients.
    """
    groups = _groups(len(prompts), settings.prompts)
    scorer = Scorer(
        student=student,
        teacher=teacher,
        vocab_size=min(student.vocab_size, teacher.vocab_size),
    )
    gradients: dict[str, Float[Tensor, "batches parameters"]] = {}
    records: list[EvalRecord] = []
    with evaluating(student.module), evaluating(teacher.module):
        for writer in WRITERS:
            drawn = _rollouts(writer, student, teacher, prompts, settings)
            records += _policy_distance(writer, scorer, prompts, drawn, settings.temperature)
            for direction in DIRECTIONS:
                arm = _Arm(direction, scorer, student, settings)
                rows = [arm.gradient(prompts, drawn, group) for group in groups]
                gradients[f"{direction}/{writer}"] = torch.stack(rows)
    return [*_noise(gradients), *_cosines(gradients), *records]


def _groups(n: int, size: int) -> list[list[int]]:
    groups = [list(range(start, start + size)) for start in range(0, n - size + 1, size)]
    if len(groups) < 2:
        raise ValueError(
            f"{n} prompts do not fill two micro-gradients of {size}. Give more prompts, or lower "
            "evaluate.gradients.prompts"
        )
    return groups


def _rollouts(
    writer: str,
    student: LanguageModel,
    teacher: LanguageModel,
    prompts: Sequence[Prompt],
    settings: ArmSettings,
) -> Completions:
    return draw(
        WRITERS[writer],
        settings.temperature,
        student=Speaker(student, [prompt.student for prompt in prompts]),
        teacher=Speaker(teacher, [prompt.teacher for prompt in prompts]),
        max_new_tokens=settings.max_new_tokens,
        seed=derive_seed(settings.seed, "gradients", writer),
    )


class _Arm:
    """One divergence on given rollouts."""

    def __init__(
        self, direction: str, scorer: Scorer, student: LanguageModel, settings: ArmSettings
    ) -> None:
        method = Method(divergence=DIRECTIONS[direction], temperature=settings.temperature)
        self._objective = Objective(method, max_length=settings.max_new_tokens)
        self._scorer = scorer
        self._parameters = [p for p in student.module.parameters() if p.requires_grad]
        self._buckets = settings.buckets

    def gradient(
        self, prompts: Sequence[Prompt], drawn: Completions, group: Sequence[int]
    ) -> Float[Tensor, " kept"]:
        """The gradient of the mean loss over a group of rollouts, whole or projected."""
        part, own = drawn.rows(group), [prompts[row] for row in group]
        loss_mask = self._objective.loss_mask(part)
        total = [torch.zeros_like(p, dtype=torch.float32) for p in self._parameters]
        for rows in _passes(own, part):
            laws = self._scorer.laws(own, part, rows)
            uniforms = torch.zeros(len(laws.student_hidden), dtype=torch.float64)
            loss = self._objective(
                laws, rollout=part, loss_mask=loss_mask, rows=rows, uniforms=uniforms
            )
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for summed, gradient in zip(total, found, strict=True):
                if gradient is not None:
                    summed.add_(gradient)
        flat = torch.cat([gradient.flatten() for gradient in total])
        return flat if flat.numel() <= EXACT_PARAMETERS else project(flat, buckets=self._buckets)


def _passes(prompts: Sequence[Prompt], completions: Completions) -> list[list[int]]:
    longest = [max(len(prompt.student), len(prompt.teacher)) for prompt in prompts]
    return micro_batches(longest, completions.lengths.tolist(), TOKENS_PER_PASS)


# ---------------------------------------------------------------- numbers of the gradients


def _number(
    suite: str, item: str, value: float | None, *, samples: int, tokens: int = 0
) -> EvalRecord:
    finite = value if value is not None and math.isfinite(value) else None
    return EvalRecord(
        suite=suite,
        item=item,
        temperature=0.0,
        samples=samples,
        correct=0,
        distinct=0,
        unanswered=0,
        truncated=0,
        tokens=tokens,
        value=finite,
    )


def _noise(gradients: Mapping[str, Tensor]) -> Iterator[EvalRecord]:
    for arm, rows in gradients.items():
        found = gradient_noise(rows)
        numbers = {
            "gradient_norm": math.sqrt(found.mean_norm_squared),
            "gradient_signal": found.unbiased_norm_squared,
            "gradient_noise": found.trace_variance,
            "gradient_snr": found.snr,
        }
        for suite, value in numbers.items():
            yield _number(suite, arm, value, samples=len(rows))


def _cosines(gradients: Mapping[str, Tensor]) -> Iterator[EvalRecord]:
    for one, other in itertools.combinations(gradients, 2):
        zero = not gradients[one].mean(0).any() or not gradients[other].mean(0).any()
        found = None if zero else gradient_cosines(gradients[one], gradients[other])
        for suite, value in (
            ("gradient_cosine", found and found.plain),
            ("gradient_cosine_debiased", found and found.debiased),
        ):
            yield _number(suite, f"{one} ~ {other}", value, samples=len(gradients[one]))


# ---------------------------------------------------------------- distance of the policies


@torch.no_grad()
def _policy_distance(
    writer: str,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    drawn: Completions,
    temperature: Temperature,
) -> list[EvalRecord]:
    """Total variation of the two rollout laws along the writer's own completions."""
    whole = [0.0] * len(prompts)
    steps = [0.0] * len(prompts)
    for rows in _passes(prompts, drawn):
        laws = scorer.laws(prompts, drawn, rows)
        part = drawn.rows(rows)
        ratio, distance = _tokens(laws, part.tokens[part.mask], temperature, writer)
        lengths = part.lengths.tolist()
        pairs = zip(rows, ratio.split(lengths), distance.split(lengths), strict=True)
        for row, ratios, distances in pairs:
            zero = torch.zeros(1, dtype=torch.float64)
            whole[row] = float(sequence_tv(zero, ratios.sum().reshape(1)))
            steps[row] = float(distances.mean())
    lengths = drawn.lengths.tolist()
    return [
        _number(f"{suite}:{writer}", prompt.problem.key, value, samples=1, tokens=length)
        for suite, values in (("policy_tv", whole), ("policy_tv_token", steps))
        for prompt, value, length in zip(prompts, values, lengths, strict=True)
    ]


def _tokens(
    laws: Laws, tokens: Tensor, temperature: Temperature, writer: str
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """Ratio log rho' - log rho of each token, rho the writer's law, and the total variation there.

    Both laws are at the models' sampling temperatures; a nucleus is left out.
    """
    ratios: list[Tensor] = []
    distances: list[Tensor] = []
    for start in range(0, len(tokens), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        student = log_probs(
            laws.student_hidden[chunk].float() @ laws.student_head.float().T,
            temperature=temperature.student_rollout,
            vocab_size=laws.vocab_size,
        )
        teacher = log_probs(
            laws.teacher_hidden[chunk].float() @ laws.teacher_head.float().T,
            temperature=temperature.teacher_rollout,
            vocab_size=laws.vocab_size,
        )
        own, other = (student, teacher) if writer == "student" else (teacher, student)
        difference = (other - own).gather(-1, tokens[chunk, None])[:, 0]
        ratios.append(difference.double())
        distances.append(
            total_variation(teacher_log_probs=teacher, student_log_probs=student).double()
        )
    return torch.cat(ratios), torch.cat(distances)
