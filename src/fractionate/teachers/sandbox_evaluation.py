"""A light evaluation of the sandbox's models, to choose recipes and to describe the checkpoints."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from fractionate.rng import derive_seed, stream
from fractionate.statistics.pass_at_k import pass_at_k
from fractionate.tasks.base import Problem, Split
from fractionate.tasks.sandbox import SKILL_TAGS, SandboxCountdown, SandboxSkill
from fractionate.tasks.sandbox.components import prompt
from fractionate.tasks.sandbox.traces import VERDICT_WEIGHT, trace
from fractionate.tasks.sandbox.vocabulary import BOS, COUNTDOWN_TAG, NO_OPERATOR

BATCH = 800
LIMITS: Mapping[int, int] = {3: 128, 4: 200}
"""Longest completion per number of operands, tokens."""
SKILL_LIMIT = 8
K = (1, 4, 16)


@dataclass(frozen=True)
class Plan:
    """What is evaluated.

    Attributes:
        split: Split of the problems.
        problems: Problems per size of Countdown.
        samples: Completions per problem.
        questions: Questions per skill, fewer where the split has fewer.
        temperatures: Temperatures at which Countdown is sampled; skills are greedy.
        operands: Sizes of Countdown.
    """

    split: Split = "selection"
    problems: int = 200
    samples: int = 16
    questions: int = 100
    temperatures: tuple[float, ...] = (0.5, 1.0)
    operands: tuple[int, ...] = (3, 4)


@dataclass(frozen=True)
class CountdownScore:
    """One size of Countdown at one temperature.

    Attributes:
        operands: Given numbers.
        temperature: Sampling temperature.
        pass_at: Unbiased pass@k by k.
        finished: Share of completions that ended by themselves within the limit.
        mean_length: Tokens of a completion, the end included.
        problems: Number of problems.
        samples: Completions per problem.
    """

    operands: int
    temperature: float
    pass_at: Mapping[int, float]
    finished: float
    mean_length: float
    problems: int
    samples: int


@dataclass(frozen=True)
class ModelScores:
    """All scores of a model.

    Attributes:
        split: Split of the problems.
        countdown: One score per size and temperature.
        skills: Greedy exact match per skill.
        verdicts: Balanced accuracy (mean over `x` and operators) of the greedy verdict in right
            traces of three numbers, per tag that may stand before them.
    """

    split: Split
    countdown: tuple[CountdownScore, ...]
    skills: Mapping[str, float]
    verdicts: Mapping[str, float]

    @property
    def skills_mean(self) -> float:
        """Mean over the skills."""
        return sum(self.skills.values()) / len(self.skills)


@dataclass(frozen=True)
class _Subject:
    """A model with its own tokenizer: the ids of a word differ between the families."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def ids(self, words: Sequence[str]) -> list[int]:
        """Ids of words, behind the beginning-of-sequence token."""
        found = self.tokenizer.convert_tokens_to_ids([BOS, *words])
        assert isinstance(found, list)
        return found

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def ended(self, ids: Sequence[int]) -> bool:
        return ids[-1] == self.tokenizer.eos_token_id


def evaluate_model(folder: Path, plan: Plan | None = None, *, seed: int = 0) -> ModelScores:
    """Evaluate a sandbox model on Countdown and on the prior skills.

    Args:
        folder: A `transformers` folder, or anything `from_pretrained` takes.
        plan: What is evaluated; None for the selection split at full size.
        seed: Seed of the sampling.
    """
    plan = Plan() if plan is None else plan
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    subject = _Subject(model, AutoTokenizer.from_pretrained(folder))
    countdown = tuple(
        _countdown(subject, plan, operands, temperature, seed)
        for operands, temperature in itertools.product(plan.operands, plan.temperatures)
    )
    skills = {name: _skill(subject, plan, name) for name in SKILL_TAGS}
    verdicts = {tag: _verdicts(subject, plan, tag) for tag in (COUNTDOWN_TAG, "trace")}
    return ModelScores(plan.split, countdown, skills, {**verdicts, "verdict": _lone(subject, plan)})


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    limit: int,
    temperature: float,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """One completion per prompt; all prompts have the same length.

    Args:
        model: Any causal model of `transformers`.
        prompts: Token ids.
        limit: Most tokens of a completion.
        temperature: 0 for greedy.
        generator: Source of the sampling; not needed for greedy.

    Returns:
        Completions with the end-of-sequence token, if it came within the limit.
    """
    completions: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    tokens = torch.tensor(prompts)
    cache = DynamicCache()
    for _ in range(limit):
        output = model(tokens, None, None, cache, use_cache=True)
        logits = output.logits[:, -1].float()
        if temperature:
            law = torch.softmax(logits / temperature, dim=-1)
            chosen = torch.multinomial(law, 1, generator=generator)[:, 0]
        else:
            chosen = logits.argmax(dim=-1)
        for index, token in zip(running, chosen.tolist(), strict=True):
            completions[index].append(token)
        going = torch.nonzero(chosen != model.config.eos_token_id)[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(running):
            running = [running[index] for index in going.tolist()]
            cache.batch_select_indices(going)
        tokens = chosen[going, None]
    return completions


def _asked(problem: Problem) -> list[str]:
    return problem.messages[0]["content"].split()


def _countdown(
    subject: _Subject, plan: Plan, operands: int, temperature: float, seed: int
) -> CountdownScore:
    task = SandboxCountdown(operands)
    problems = task.problems(plan.split, plan.problems)
    names = ("sandbox", "evaluation", operands, str(temperature))
    generator = torch.Generator().manual_seed(derive_seed(seed, *names))
    repeated = [problem for problem in problems for _ in range(plan.samples)]
    completions: list[list[int]] = []
    for start in range(0, len(repeated), BATCH):
        completions += sample(
            subject.model,
            [subject.ids(_asked(problem)) for problem in repeated[start : start + BATCH]],
            limit=LIMITS[operands],
            temperature=temperature,
            generator=generator,
        )
    right = [
        task.grade(problem, subject.text(completion)).correct
        for problem, completion in zip(repeated, completions, strict=True)
    ]
    counts = [sum(right[at : at + plan.samples]) for at in range(0, len(right), plan.samples)]
    return CountdownScore(
        operands,
        temperature,
        {k: _mean([pass_at_k(plan.samples, c, k) for c in counts]) for k in K if k <= plan.samples},
        _mean([subject.ended(completion) for completion in completions]),
        _mean([len(completion) for completion in completions]),
        len(problems),
        plan.samples,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _skill(subject: _Subject, plan: Plan, name: str) -> float:
    task = SandboxSkill(name)
    problems = task.problems(plan.split)[: plan.questions]
    right = 0
    by_length = sorted(problems, key=lambda problem: len(_asked(problem)))
    for _, group in itertools.groupby(by_length, key=lambda problem: len(_asked(problem))):
        same = list(group)
        answers = sample(
            subject.model,
            [subject.ids(_asked(problem)) for problem in same],
            limit=SKILL_LIMIT,
            temperature=0.0,
        )
        right += sum(
            subject.ended(answer) and task.grade(problem, subject.text(answer)).correct
            for problem, answer in zip(same, answers, strict=True)
        )
    return right / len(problems)


@torch.no_grad()
def _verdicts(subject: _Subject, plan: Plan, tag: str) -> float:
    """Balanced accuracy of the verdicts in right traces under a tag."""
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for problem in SandboxCountdown(3).problems(plan.split, min(100, plan.problems)):
        operands, target = problem.reference["operands"], problem.reference["target"]
        generator = stream(0, "sandbox", "verdicts", problem.key)
        response = trace(operands, target, "cyc", generator)
        words = prompt(tag, operands, target)
        _judge(subject, words, response.words, response.weights, hits)
    return _mean([_mean(found) for found in hits.values()])


@torch.no_grad()
def _lone(subject: _Subject, plan: Plan) -> float:
    """Balanced accuracy of the verdict of a line that stands alone, under its tag."""
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for problem in SandboxCountdown(3).problems(plan.split, min(100, plan.problems)):
        operands, target = problem.reference["operands"], problem.reference["target"]
        generator = stream(0, "sandbox", "verdicts", problem.key)
        words = trace(operands, target, "cyc", generator).words
        lines = words[1 : words.index("</think>")]
        for at in range(0, len(lines), 9):
            line = lines[at : at + 9]
            _judge(subject, ["verdict", *line[:8]], line[8:], [VERDICT_WEIGHT], hits)
    return _mean([_mean(found) for found in hits.values()])


def _judge(
    subject: _Subject,
    question: Sequence[str],
    response: Sequence[str],
    weights: Sequence[float],
    hits: dict[bool, list[bool]],
) -> None:
    """Add, for each verdict of a response, whether the model's greedy choice is right."""
    ids = subject.ids([*question, *response])
    greedy = subject.model(input_ids=torch.tensor([ids])).logits[0].argmax(dim=-1).tolist()
    none = subject.ids([NO_OPERATOR])[-1]
    for place, weight in enumerate(weights, start=1 + len(question)):
        if weight == VERDICT_WEIGHT:
            hits[ids[place] == none].append(greedy[place - 1] == ids[place])
