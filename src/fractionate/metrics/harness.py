"""Benchmarks of lm-evaluation-harness on a model in memory, one record per document.

Task names, results and versions are those of the installed harness: `resolve` reads its task files
and needs no data, `load_benchmarks` needs the data (downloaded, or from the cache where
HF_DATASETS_OFFLINE or HF_HUB_OFFLINE is set), `Benchmarks.measure` needs a model. The harness
computes no bootstrap: standard errors come from the records.
"""

import contextlib
import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from numbers import Integral
from typing import Any, final

from fractionate.config import Harness
from fractionate.metrics.forgetting import BENCHMARK_PREFIX, GOLD
from fractionate.metrics.harness_tasks import HarnessError, Leaf, Target, open_index
from fractionate.metrics.programs import ProgramLimits, limited_code_eval
from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord
from fractionate.rng import borrow_global

FEWSHOT_SEED = 1234
"""The harness's own."""

_UNANSWERED = ("[invalid]", ["[invalid]"])
_LOADING = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    ImportError,
    AttributeError,
    AssertionError,
    TypeError,
)
"""What task files and the libraries of data raise where something is missing."""


@dataclass(frozen=True)
class Benchmark:
    """What was measured of one benchmark, for provenance beside its records.

    Attributes:
        task: Name of the task or group.
        result: The result that counts, e.g. "acc,none".
        versions: Version of every task of the group.
        num_fewshot: Shots of every task.
        documents: Documents measured, of all tasks.
        available: Documents there are.
    """

    task: str
    result: str
    versions: Mapping[str, str]
    num_fewshot: Mapping[str, int]
    documents: int
    available: int


@final
class Benchmarks:
    """Loaded tasks, ready for any number of models."""

    def __init__(
        self, config: Harness, targets: Sequence[Target], loaded: Mapping[str, Any]
    ) -> None:
        """Keep the tasks; use `load_benchmarks`."""
        self.config = config
        self.targets = tuple(targets)
        self._loaded = loaded

    def describe(self) -> dict[str, Any]:
        """Versions, shots and sizes, as plain values."""
        described = [vars(self._benchmark(target)) for target in self.targets]
        return {
            "harness": version("lm-eval"),
            "apply_chat_template": self.config.apply_chat_template,
            "limit": self.config.limit,
            "benchmarks": described,
        }

    def _benchmark(self, target: Target) -> Benchmark:
        tasks = {leaf.name: self._loaded["tasks"][leaf.name] for leaf in target.leaves}
        sizes = [len(task.eval_docs) for task in tasks.values()]
        most = self.config.limit
        return Benchmark(
            task=target.name,
            result=target.result,
            versions={name: str(task.VERSION) for name, task in tasks.items()},
            num_fewshot={name: int(task.get_config("num_fewshot")) for name, task in tasks.items()},
            documents=sum(size if most is None else min(size, most) for size in sizes),
            available=sum(sizes),
        )

    def check(self, model: LanguageModel) -> None:
        """Refuse a model that cannot be measured, before anything is.

        Raises:
            HarnessError: It has no chat template and the config wants one, or its context is too
                short for what a task lets it write.
        """
        check_chat_template(self.config, model)
        with _quiet():
            lm = _wrapped(model, self.config, None)
        for name, task in self._loaded["tasks"].items():
            most = (task.get_config("generation_kwargs") or {}).get("max_gen_toks", 0)
            if most >= lm.max_length:
                raise HarnessError(
                    f"evaluate.forgetting: task '{name}' lets a model write {most} tokens, but "
                    f"this one's context holds {lm.max_length}. Leave the task out, or measure a "
                    "model with a longer context"
                )

    def measure(
        self,
        model: LanguageModel,
        *,
        seed: int,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EvalRecord]:
        """Run every benchmark on a model.

        The harness writes greedily unless a task says otherwise. Contexts that are longer than the
        model's are cut from the left, as the harness does it; `reasons["prompt_cut"]` counts them.

        Args:
            model: In memory; its module is not copied, its tokenizer is.
            seed: For tasks that draw.
            chat_template_kwargs: Passed to the chat template.

        Returns:
            One record per document, named "benchmark:" and the task; `value` is the score, a share
            of 1, which may be negative for EQ-Bench.

        Raises:
            HarnessError: The model has no chat template and the config wants one, its context is
                too short for what a task lets it write, or a score is not what it should be; names
                the task.
        """
        self.check(model)
        from lm_eval.evaluator import evaluate

        with _quiet(), borrow_global(seed, "lm-evaluation-harness"):
            lm = _wrapped(model, self.config, chat_template_kwargs)
            tasks: Any = dict(self._loaded)
            results: Any = evaluate(
                lm,
                tasks,
                limit=self.config.limit,
                bootstrap_iters=0,
                log_samples=True,
                apply_chat_template=self.config.apply_chat_template,
                fewshot_as_multiturn=self.config.apply_chat_template,
                confirm_run_unsafe_code=self.config.allow_code,
            )
        return [
            _record(target, leaf, sample, lm)
            for target in self.targets
            for leaf in target.leaves
            for sample in sorted(results["samples"][leaf.name], key=lambda s: s["doc_id"])
            if sample["filter"] == target.filter
        ]


def resolve(config: Harness) -> tuple[Target, ...]:
    """The tasks and results that a configuration means, from the installed harness; no data.

    Raises:
        HarnessError: The harness is not installed, a name or result is not its own, or a task runs
            programs and `allow_code` is false.
    """
    index = open_index(config)
    return tuple(index.target(name, config.results.get(name)) for name in config.names)


def load_benchmarks(config: Harness) -> Benchmarks:
    """Load the tasks with their data, from the hub or its cache.

    Raises:
        HarnessError: As `resolve`; or data or a package that a task needs is not there: names the
            task and the mend.
    """
    index = open_index(config)
    targets = resolve(config)
    parts: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
    code = limited_code_eval(ProgramLimits()) if config.allow_code else contextlib.nullcontext()
    # data files that a task of `include` names are beside it
    place = contextlib.nullcontext() if config.include is None else contextlib.chdir(config.include)
    with code, place, _quiet():
        for target in targets:
            with _explained(target):
                found = index.manager.load([target.name])
            for part, entries in found.items():
                parts[part] |= entries
            for leaf in target.leaves:
                _set_shots(parts["tasks"][leaf.name], config.num_fewshot.get(target.name))
    return Benchmarks(config, targets, parts)


def check_chat_template(config: Harness, model: LanguageModel) -> None:
    """Refuse a chat template that the model does not have.

    Raises:
        HarnessError: As said.
    """
    if config.apply_chat_template and not model.tokenizer.chat_template:
        raise HarnessError(
            f"evaluate.forgetting.apply_chat_template: {model.source} has no chat template. "
            "Set it to false, or measure a model that has one"
        )


def _set_shots(task: Any, shots: int | None) -> None:
    own = task.get_config("num_fewshot")
    task.set_config(key="num_fewshot", value=(own or 0) if shots is None else shots)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The harness prints and draws progress bars; a stage has its own reports."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _explained(target: Target) -> Iterator[None]:
    """Turn what loading a task raises into one sentence with the mend."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise HarnessError(
            f"evaluate.forgetting: task '{target.name}' needs the Python package '{error.name}'. "
            "Install fractionate[evaluate], or leave the task out of evaluate.forgetting.tasks"
        ) from None
    except _LOADING as error:
        from datasets import config as datasets_config

        offline = bool(datasets_config.HF_HUB_OFFLINE)
        state = "offline mode is on (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE)" if offline else ""
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise HarnessError(
            f"evaluate.forgetting: the data of task '{target.name}' ({target.data}) cannot be "
            f"loaded{': ' + state if state else ''} ({reason}). Fetch them once where the hub can "
            "be reached, into the cache that HF_HOME names; or give the task a local copy in a "
            "task file under evaluate.forgetting.include; or leave it out of "
            "evaluate.forgetting.tasks"
        ) from None


def _wrapped(model: LanguageModel, config: Harness, kwargs: Mapping[str, Any] | None) -> Any:
    from lm_eval.models.huggingface import HFLM

    wrap: Any = HFLM  # a decorator hides its arguments
    return wrap(
        pretrained=model.module,
        tokenizer=copy.deepcopy(model.tokenizer),  # the harness may give it a padding token
        batch_size=config.batch_size,
        chat_template_args=dict(kwargs or {}),
    )


# ---------------------------------------------------------------- from the harness's samples


def _record(target: Target, leaf: Leaf, sample: Mapping[str, Any], lm: Any) -> EvalRecord:
    """One document; the score as a share of 1."""
    if target.metric not in sample:
        raise HarnessError(
            f"evaluate.forgetting: task '{leaf.name}' gave no '{target.metric}' for document "
            f"{sample['doc_id']}. Its results: {', '.join(sample['metrics'])}"
        )
    score = float(sample[target.metric]) * target.scale
    if not -100.0 <= score <= 1.0:
        raise HarnessError(
            f"evaluate.forgetting: '{target.metric}' of task '{leaf.name}' is {score:g}, but a "
            "benchmark's score is a share, 1 at most. Name another result in "
            "evaluate.forgetting.results"
        )
    tokens, truncated = _written(sample, leaf, lm)
    reasons = {name: count for name, count in _reasons(sample, leaf, lm).items() if count}
    return EvalRecord(
        suite=BENCHMARK_PREFIX + target.name,
        item=f"{leaf.name}/{sample['doc_id']}",
        temperature=0.0,
        samples=1,
        correct=int(score == 1.0),
        distinct=int(score == 1.0),
        unanswered=int(_unanswered(sample)),
        truncated=int(truncated),
        tokens=tokens,
        value=score,
        reasons=reasons,
    )


def _unanswered(sample: Mapping[str, Any]) -> bool:
    """No answer of the required form: the regex found none, or EQ-Bench could not parse it."""
    unreadable = any(response in _UNANSWERED for response in sample["filtered_resps"])
    return unreadable or sample.get("percent_parseable") == 0


def _written(sample: Mapping[str, Any], leaf: Leaf, lm: Any) -> tuple[int, bool]:
    """Tokens of what was generated, and whether it met the limit; by encoding the text again."""
    if leaf.output_type != "generate_until":
        return 0, False
    texts = [text for responses in sample["resps"] for text in responses]
    lengths = [len(lm.tok_encode(text, add_special_tokens=False)) for text in texts]
    most = sample["arguments"][0][1].get("max_gen_toks", lm.max_gen_toks)
    return sum(lengths), any(length >= most for length in lengths)


def _reasons(sample: Mapping[str, Any], leaf: Leaf, lm: Any) -> dict[str, int]:
    """Whether the context was cut; the gold label of a choice, for balanced accuracy."""
    room = lm.max_length + 1
    if leaf.output_type == "generate_until":
        room = lm.max_length - sample["arguments"][0][1].get("max_gen_toks", lm.max_gen_toks)
    cut = any(
        sum(len(lm.tok_encode(text)) for text in arguments if isinstance(text, str)) > room
        for arguments in sample["arguments"]
    )
    found = {"prompt_cut": int(cut)}
    if leaf.output_type == "multiple_choice" and isinstance(sample["target"], Integral | str):
        found[f"{GOLD}{sample['target']}"] = 1
    return found
