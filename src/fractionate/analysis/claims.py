"""The paper's claims as tests of our own records: holds, does not hold, or cannot be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fractionate.analysis import claims_dynamics as dynamics
from fractionate.analysis import claims_grid as grid
from fractionate.analysis import claims_sweep as sweep
from fractionate.analysis.evidence import Finding, Untestable
from fractionate.analysis.paper import CLAIMS, Published
from fractionate.analysis.runs import Runs

TESTS: Mapping[str, Callable[[Runs], Finding]] = {
    "C1": grid.best_accuracy_is_equal,
    "C2": grid.forward_is_insensitive,
    "C3": grid.reverse_is_sensitive,
    "C4": grid.low_rate_preserves,
    "C5": grid.high_rate_forgets,
    "C6": grid.rate_outweighs_rollout,
    "C7": grid.rate_sets_sparsity,
    "C8": grid.teacher_is_as_sparse,
    "C9": sweep.sparsity_is_linear,
    "C10": sweep.forgetting_grows,
    "C11": sweep.teacher_forgets_less,
    "C12": dynamics.forgetting_is_early,
    "C13": sweep.forward_is_flat,
    "C14": sweep.reverse_prefers_student,
    "C15": sweep.spectrum_barely_moves,
    "C20": dynamics.clipping_always_acts,
    "C21": dynamics.reverse_is_spikier,
    "C31": dynamics.likelihoods_start_apart,
    "C35": grid.threshold_does_not_matter,
    "C39": dynamics.spikes_follow_ranges,
}
"""One test per claim; its docstring gives the statistic and the threshold."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside our finding.

    Attributes:
        key: Its number, e.g. "C7".
        published: What the paper says, with its scope.
        finding: Ours; None where this study cannot test it.
        untestable: What the study lacks, or None.
    """

    key: str
    published: Published
    finding: Finding | None
    untestable: str | None


def judge_claims(runs: Runs) -> tuple[Claim, ...]:
    """Put every claim to these runs.

    A verdict speaks of this study's models and tasks only. Thresholds are those of the docstrings
    in `claims_grid`, `claims_sweep` and `claims_dynamics`, fixed before any run.
    """
    return tuple(_judge(key, test, runs) for key, test in TESTS.items())


def _judge(key: str, test: Callable[[Runs], Finding], runs: Runs) -> Claim:
    try:
        return Claim(key, CLAIMS[key], test(runs), None)
    except Untestable as reason:
        return Claim(key, CLAIMS[key], None, str(reason))
