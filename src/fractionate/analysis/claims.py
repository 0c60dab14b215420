"""The paper's claims as tests of our own records: holds, does not hold, or cannot be told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fractionate.analysis import claims_coverage as coverage
from fractionate.analysis import claims_dynamics as dynamics
from fractionate.analysis import claims_grid as grid
from fractionate.analysis import claims_sweep as sweep
from fractionate.analysis import claims_theory as theory
from fractionate.analysis import claims_trap as trap
from fractionate.analysis import claims_variants as variants
from fractionate.analysis.designs import Design, designs, low_and_high
from fractionate.analysis.evidence import Finding, Untestable, Verdict
from fractionate.analysis.paper import CLAIMS, Published
from fractionate.analysis.runs import Runs

Fits = Callable[[Design], bool]
Shelf = Sequence[Design]


@dataclass(frozen=True)
class Rule:
    """How one claim is put to records.

    Attributes:
        judge: Of all designs, or of the runs of one; its docstring is the rule.
        experiment: Which experiment of the paper has what it needs.
        fits: Which designs it can be put to, one after another until one can tell; none takes all
            of them together.
        two_rates: Only the low and the high rate of a design count.
        many_rates: Designs with more rates come first.
        records: Whether it needs records at all.
    """

    judge: Callable[..., Finding]
    experiment: str
    fits: Fits | None = None
    two_rates: bool = False
    many_rates: bool = False
    records: bool = True

    @property
    def text(self) -> str:
        """Statistic and threshold, in words."""
        said = (self.judge.__doc__ or "").partition("Raises:")[0]
        return " ".join(said.split()).partition(": ")[2]


def _any(design: Design) -> bool:
    return bool(design.runs.runs)


def _grid(design: Design) -> bool:
    return design.is_grid


def _clipped(design: Design) -> bool:
    return design.fact("optimizer.clip") != "none"


TESTS: Mapping[str, Rule] = {
    "C1": Rule(grid.best_accuracy_is_equal, "E1", _grid, two_rates=True),
    "C2": Rule(grid.forward_is_insensitive, "E1", _grid, two_rates=True),
    "C3": Rule(grid.reverse_is_sensitive, "E1", _grid, two_rates=True),
    "C4": Rule(grid.low_rate_preserves, "E1", _grid, two_rates=True),
    "C5": Rule(grid.high_rate_forgets, "E1", _grid, two_rates=True),
    "C6": Rule(grid.rate_outweighs_rollout, "E1", _grid, two_rates=True),
    "C7": Rule(grid.rate_sets_sparsity, "E1", _grid, two_rates=True),
    "C8": Rule(grid.teacher_is_as_sparse, "E1", _grid, two_rates=True),
    "C9": Rule(sweep.sparsity_is_linear, "E2", _any, many_rates=True),
    "C10": Rule(sweep.forgetting_grows, "E2", _any, many_rates=True),
    "C11": Rule(sweep.teacher_forgets_less, "E2", _grid, many_rates=True),
    "C12": Rule(dynamics.forgetting_is_early, "E1", _any),
    "C13": Rule(sweep.forward_is_flat, "E3", _any),
    "C14": Rule(sweep.reverse_prefers_student, "E3", _any),
    "C15": Rule(sweep.spectrum_barely_moves, "E3", _any),
    "C16": Rule(coverage.forward_covers_more, "E7", _any),
    "C17": Rule(coverage.student_side_transfers, "E8", _any),
    "C18": Rule(coverage.head_start_is_lost, "E9", _any),
    "C19": Rule(coverage.reverse_collapses, "E9", _any),
    "C20": Rule(dynamics.clipping_always_acts, "E1", _clipped),
    "C21": Rule(dynamics.reverse_is_spikier, "E1", _any),
    "C22": Rule(variants.clipping_saves_reverse, "E4"),
    "C23": Rule(variants.sampled_kl_agrees, "E5"),
    "C24": Rule(variants.long_traces, "E6"),
    "C25": Rule(theory.only_reverse_on_policy_resists, "E10", _any),
    "C26": Rule(variants.forward_ignores_temperature, "E11"),
    "C27": Rule(variants.best_ignores_temperature, "E11"),
    "C28": Rule(trap.small_divergence_hides_entropy, "E12"),
    "C29": Rule(trap.ability_is_hidden_by_temperature, "E12", _any),
    "C30": Rule(trap.early_checkpoint_is_useful, "E12", _any),
    "C31": Rule(dynamics.likelihoods_start_apart, "E1", _any),
    "C32": Rule(trap.student_confidence_dips, "E1", _any),
    "C33": Rule(variants.second_forgets_with_lam, "E13"),
    "C34": Rule(variants.second_gains_at_low, "E13"),
    "C35": Rule(grid.threshold_does_not_matter, "E14", _any, two_rates=True),
    "C36": Rule(theory.benchmark_profile, "E1", _grid, two_rates=True),
    "C37": Rule(theory.forward_updates_are_bounded, "E1"),
    "C38": Rule(theory.reverse_updates_need_a_range, "E1"),
    "C39": Rule(dynamics.spikes_follow_ranges, "E1", _any),
    "C40": Rule(theory.published_rates_differ, "E15", records=False),
}
"""One test per claim, frozen before any run: the docstring of its function gives the statistic, the
threshold and the interval."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside our finding.

    Attributes:
        key: Its number, e.g. "C7".
        published: What the paper says, with its scope.
        finding: Ours; None where these studies cannot test it.
        untestable: What the studies lack, or None.
        experiment: Which experiment of the paper has what it needs.
        rule: Statistic and threshold, in words.
        source: Whose runs were looked at; "" where it needs none, or where none fit.
    """

    key: str
    published: Published
    finding: Finding | None
    untestable: str | None
    experiment: str = ""
    rule: str = ""
    source: str = ""

    @property
    def verdict(self) -> Verdict | str:
        """The verdict, or that there is none."""
        return self.finding.verdict if self.finding else "no verdict"


def judge_claims(studies: Runs | Sequence[Runs]) -> tuple[Claim, ...]:
    """Put every claim to the runs of one study, or of several.

    A verdict speaks of these studies' models and tasks only. What a study is an experiment on is
    read from what it holds and varies. A claim is put to the design closest to the paper's; designs
    that cannot test it are passed over, a design that cannot tell is not: verdicts are not shopped
    for.
    """
    shelf = designs((studies,) if isinstance(studies, Runs) else studies)
    return tuple(_judge(key, rule, shelf) for key, rule in TESTS.items())


def decided(claims: Sequence[Claim]) -> int:
    """How many claims have a verdict other than that it cannot be told."""
    return sum(claim.verdict in ("holds", "does not hold") for claim in claims)


def _judge(key: str, rule: Rule, shelf: Shelf) -> Claim:
    try:
        finding, source = _found(rule, shelf)
    except Untestable as reason:
        return Claim(key, CLAIMS[key], None, str(reason), rule.experiment, rule.text)
    return Claim(key, CLAIMS[key], finding, None, rule.experiment, rule.text, source)


def _found(rule: Rule, shelf: Shelf) -> tuple[Finding, str]:
    """The finding, and the designs behind it.

    Raises:
        Untestable: With the reason of the design that came first.
    """
    if rule.fits is None:
        finding = rule.judge(*((shelf,) if rule.records else ()))
        return finding, finding.source
    chosen = [design for design in shelf if rule.fits(design)]
    if rule.many_rates:
        chosen.sort(key=lambda design: -len(design.rates))
    reason = Untestable(_NEEDS[rule.fits])
    for place, design in enumerate(chosen):
        try:
            runs = low_and_high(design.runs) if rule.two_rates else design.runs
            found = rule.judge(runs)
        except Untestable as error:
            reason = error if place == 0 else reason
        else:
            return found, _source(design)
    raise reason


_NEEDS: Mapping[Fits, str] = {
    _any: "there are no runs",
    _grid: "needs student and teacher rollouts as levels",
    _clipped: "needs runs whose gradients are clipped",
}


def _source(design: Design) -> str:
    """A design by name, with how it departs from the paper's main experiment."""
    apart = design.deviations
    return f"{design.name} [{', '.join(apart)}]" if apart else design.name
