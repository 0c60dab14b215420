import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statistics_example import FACTORS, LEVELS, LOST_RUNS, OUTCOME, SEEDS, without
from statsmodels.stats.anova import anova_lm

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    anova_intervals,
    factorial_anova,
    knob_importance,
    worst_case_swing,
)

FIELDS = {
    "effect": "effect",
    "SS": "ss",
    "F": "f",
    "p": "p",
    "eta2": "eta2",
    "peta2": "partial_eta2",
    "omega2": "omega2",
    "pomega2": "partial_omega2",
}


@pytest.fixture(scope="module")
def table():
    return factorial_anova(OUTCOME, FACTORS, levels=LEVELS)


@pytest.mark.parametrize("term", ["R", "K", "L", "RK", "RL", "KL", "RKL"])
def test_the_worked_table(table, term):
    ours = table.term(":".join(term))
    for key, field in FIELDS.items():
        assert getattr(ours, field) == pytest.approx(EXAMPLES["anova"][term][key], rel=1e-9), key


def test_the_lines_below_the_table(table):
    assert table.total.ss == pytest.approx(EXAMPLES["an_SST"])
    assert table.residual.ss == pytest.approx(EXAMPLES["an_SSE"])
    assert table.residual.ms == pytest.approx(EXAMPLES["an_MSE"])
    assert table.residual.df == 16
    assert table.mean == pytest.approx(EXAMPLES["an_mean"])


def test_effects_are_twice_the_mean_of_code_times_outcome(table):
    code = np.where(np.array(FACTORS["R"]) == "teacher", 1, -1)
    assert table.term("R").effect == pytest.approx(2 * np.mean(code * OUTCOME))


def test_level_order_turns_the_sign_of_an_effect(table):
    turned = factorial_anova(OUTCOME, FACTORS, levels={"L": ("high", "low")})
    assert turned.term("L").effect == pytest.approx(-table.term("L").effect)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_types_coincide_in_a_balanced_design(table, kind):
    other = factorial_anova(OUTCOME, FACTORS, levels=LEVELS, sum_of_squares=kind)
    assert [t.ss for t in other.terms] == pytest.approx([t.ss for t in table.terms])
    assert other.term("R").ss == pytest.approx(EXAMPLES["t_bal_R"])


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_types_differ_once_runs_are_lost(kind):
    outcome, factors, _ = without(LOST_RUNS)
    table = factorial_anova(outcome, factors, levels=LEVELS, sum_of_squares=kind)
    assert table.term("R").ss == pytest.approx(EXAMPLES[f"t{kind}_R"], rel=1e-9)
    assert not table.balanced


def _ragged():
    """An unbalanced 2 x 3 x 4 design with blocks and a planted interaction."""
    rng = stream(7, "ragged")
    # Every cell once, and 66 more runs anywhere.
    cells = np.concatenate([np.arange(24), rng.integers(0, 24, 66)])
    n = cells.size
    frame = pd.DataFrame({"a": cells % 2, "b": cells // 2 % 3, "c": cells // 6})
    frame["s"] = rng.integers(0, 3, n)
    frame["y"] = rng.normal(size=n) + frame.a * frame.b + 0.3 * frame.s
    return frame


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("blocked", [False, True])
def test_unbalanced_many_level_tables_agree_with_statsmodels(kind, blocked):
    frame = _ragged()
    formula = "C(a, Sum) * C(b, Sum) * C(c, Sum)"
    formula = f"y ~ C(s, Sum) + {formula}" if blocked else f"y ~ {formula}"
    theirs = anova_lm(smf.ols(formula, frame).fit(), typ=kind)
    ours = factorial_anova(
        frame.y,
        {name: frame[name] for name in "abc"},
        blocks={"s": frame.s} if blocked else None,
        sum_of_squares=kind,
    )
    for term in ours.terms:
        row = theirs.loc[":".join(f"C({name}, Sum)" for name in term.factors)]
        assert term.ss == pytest.approx(row["sum_sq"], rel=1e-8)
        assert term.df == row["df"]
        assert term.p == pytest.approx(row["PR(>F)"], rel=1e-7)
    assert ours.residual.ss == pytest.approx(theirs.loc["Residual", "sum_sq"])


def test_shares_of_a_balanced_table_and_the_residual_sum_to_one(table):
    explained = sum(term.eta2 for term in table.terms)
    assert explained + table.residual.ss / table.total.ss == pytest.approx(1.0)


def test_shift_and_scale_leave_the_shares_alone(table):
    moved = factorial_anova(1e-3 * OUTCOME + 5, FACTORS, levels=LEVELS)
    assert [t.omega2 for t in moved.terms] == pytest.approx([t.omega2 for t in table.terms])


def test_negative_omega2_is_kept():
    y = [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]
    term = factorial_anova(y, {"a": list("xxxyyy")}).term("a")
    assert term.omega2 == pytest.approx(-0.2)


def test_block_terms_take_their_variance_out_of_the_residual(table):
    blocked = factorial_anova(OUTCOME, FACTORS, levels=LEVELS, blocks={"seed": SEEDS})
    assert blocked.residual.df == table.residual.df - 2
    assert blocked.residual.ss + blocked.blocks[0].ss == pytest.approx(table.residual.ss)


def test_a_base_that_hosts_several_seeds_stays_a_term_beside_them():
    seeds = [s for _ in range(4) for s in range(4)]
    factors = {"a": [c // 2 for c in range(4) for _ in range(4)], "b": [0, 0, 0, 0, 1, 1, 1, 1] * 2}
    outcome = stream(0, "nested").normal(size=16)
    blocks = {"base": [s % 2 for s in seeds], "seed": seeds}
    table = factorial_anova(outcome, factors, blocks=blocks)
    assert [block.df for block in table.blocks] == [1, 2]


def test_one_run_per_cell_has_shares_but_no_test():
    rows = [i for i, seed in enumerate(SEEDS) if seed != 0]
    outcome, factors, _ = without(rows)
    table = factorial_anova(outcome, factors)
    term = table.term("K")
    assert (term.f, term.p, term.omega2, term.partial_eta2) == (None,) * 4
    assert "no residual degrees of freedom" in term.reason
    assert sum(t.eta2 for t in table.terms) == pytest.approx(1.0)


def test_equal_replicates_have_no_f():
    term = factorial_anova([1.1, 1.1, 2.3, 2.3], {"a": list("xxyy")}).term("a")
    assert (term.f, term.p) == (None, None)
    assert term.omega2 == pytest.approx(1.0)
    assert "zero residual variance" in term.reason


def test_a_constant_outcome_has_no_shares():
    term = factorial_anova([0.1 + 0.2, 0.3, 0.3, 0.3], {"a": list("xxyy")}).term("a")
    assert (term.eta2, term.omega2, term.f) == (None, None, None)
    assert "constant" in term.reason


def test_a_single_level_factor_is_named():
    with pytest.raises(ValueError, match="'task' has a single level"):
        factorial_anova([1, 2], {"task": ["science", "science"]})


def test_a_missing_cell_names_the_term_it_costs():
    outcome, factors, _ = without(range(3))
    with pytest.raises(ValueError, match=r"'R:K:L' has 0 of its 1 .*1 cells are empty"):
        factorial_anova(outcome, factors)


def test_lower_order_models_do_without_the_missing_cell():
    outcome, factors, _ = without(range(3))
    assert len(factorial_anova(outcome, factors, order=2).terms) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": [1.0, float("nan"), 2, 3]}, "NaN"),
        ({"factors": {"a": list("xxy")}}, "3 labels for 4"),
        ({"factors": {"a": ["x", None, "y", "y"]}}, "missing labels"),
        ({"factors": {"a:b": list("xxyy")}}, "must not contain ':'"),
        ({"factors": {"a": ["x", 1, "y", 2]}}, "cannot be sorted"),
        ({"levels": {"a": ("x", "z")}}, "the data hold"),
        ({"levels": {"b": ("x", "z")}}, "not factors"),
        ({"sum_of_squares": 4}, "1, 2 or 3"),
        ({"order": 2}, "order"),
        ({"blocks": {"a": list("xyxy")}}, "as factors and as blocks"),
        ({"blocks": {"s": list("xxyy")}}, "'a' has 0 of its 1"),
        ({"blocks": {"s": list("xyxy"), "t": list("xyxy")}}, "'t' adds nothing"),
    ],
)
def test_bad_data_are_refused_in_words(change, message):
    arguments = {"outcome": [1.0, 2, 3, 5], "factors": {"a": list("xxyy")}, **change}
    with pytest.raises(ValueError, match=message):
        factorial_anova(arguments.pop("outcome"), arguments.pop("factors"), **arguments)


def test_an_unknown_term_lists_the_known_ones(table):
    assert table.term("K:R") is table.term("R:K")
    with pytest.raises(ValueError, match="R:K:L"):
        table.term("rollout")


def test_intervals_hold_the_stream_and_nothing_else(table):
    first = anova_intervals(table, SEEDS, rng=stream(0, "a"), draws=200)
    assert first == anova_intervals(table, SEEDS, rng=stream(0, "a"), draws=200)
    assert first != anova_intervals(table, SEEDS, rng=stream(1, "a"), draws=200)


def test_three_seeds_are_noted_as_few(table):
    intervals = anova_intervals(table, SEEDS, rng=stream(0, "few"), draws=200)
    assert "10 distinct resamples" in intervals.note
    assert intervals.units == 3


def test_the_largest_knob_ranks_first(table):
    intervals = anova_intervals(table, SEEDS, rng=stream(0, "rank"), draws=200)
    assert intervals.term("K").rank_first == 1.0
    assert intervals.term("R:K").rank_first is None
    knobs = knob_importance(table, intervals)
    assert [knob.factor for knob in knobs] == ["K", "R", "L"]
    assert sum(knob.rank_first for knob in knobs) == pytest.approx(1.0)


def test_worst_case_swing_looks_at_the_worst_corner(table):
    # Student against teacher under reverse KL at the low rate: 71 against 44 points.
    assert worst_case_swing(table, "R") == pytest.approx(27.0)
    with pytest.raises(ValueError, match="no factor"):
        worst_case_swing(table, "rate")


def test_blocks_inside_a_factor_are_resampled_within_its_levels():
    task = [t for t in "ab" for _ in range(8)]
    arm = [arm for _ in range(8) for arm in (0, 1)]
    unit = [i // 2 for i in range(16)]
    outcome = stream(0, "strata").normal(size=16) + 3 * np.array(arm)
    table = factorial_anova(outcome, {"task": task, "arm": arm})
    intervals = anova_intervals(table, unit, rng=stream(0, "b"), draws=300)
    assert intervals.undefined_draws == 0
    assert intervals.units == 8


def test_seeds_of_the_block_term_are_resampled_by_default():
    blocked = factorial_anova(OUTCOME, FACTORS, levels=LEVELS, blocks={"seed": SEEDS})
    intervals = anova_intervals(blocked, rng=stream(0, "c"), draws=200)
    term = intervals.term("K")
    assert term.omega2_low <= term.omega2 <= term.omega2_high


def test_intervals_need_blocks_to_resample(table):
    with pytest.raises(ValueError, match="unit is missing"):
        anova_intervals(table, rng=stream(0, "d"))
    with pytest.raises(ValueError, match="one block only"):
        anova_intervals(table, [0] * 24, rng=stream(0, "d"))


def test_intervals_of_a_saturated_design_are_refused():
    outcome, factors, seeds = without([i for i, seed in enumerate(SEEDS) if seed != 0])
    with pytest.raises(ValueError, match="no residual degrees"):
        anova_intervals(factorial_anova(outcome, factors), seeds, rng=stream(0, "e"))


@pytest.mark.slow
def test_under_the_null_p_is_uniform_and_omega2_unbiased():
    rng = stream(0, "null")
    terms = [factorial_anova(rng.normal(size=24), FACTORS).term("R:K") for _ in range(2_000)]
    assert np.mean([term.p < 0.05 for term in terms]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([term.omega2 for term in terms]) == pytest.approx(0.0, abs=0.004)
    assert np.mean([term.eta2 for term in terms]) == pytest.approx(1 / 23, abs=0.005)
