import pytest
from planted import KL, RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.runs import IncompleteStudyError, Runs, complete_or_raise, gather


def cells(seeds: tuple[int, ...] = (1, 2)):
    return [
        scored({ROLLOUT: rollout}, seed, [1, 0])
        for rollout in ("student", "teacher")
        for seed in seeds
    ]


def test_missing_cells_are_listed():
    with pytest.raises(
        IncompleteStudyError, match="1 of 5 cells are missing: teacher-s3"
    ) as caught:
        complete_or_raise(cells(), [*(cell.cell for cell in cells()), "teacher-s3"])
    assert caught.value.missing == ("teacher-s3",)


def test_holes_are_noticed_without_a_plan():
    with pytest.raises(IncompleteStudyError, match="teacher seed 2"):
        gather(cells()[:3])


def test_allow_missing_says_what_it_used():
    runs = gather(cells()[:3], allow_missing=True)
    assert runs.complete.seeds == (1,)
    assert runs.complete.dropped_seeds == (2,)
    assert runs.complete.note is not None
    assert "complete in every arm: 1" in runs.complete.note
    assert runs.grid("accuracy").shape == (2, 1)


def test_a_missing_arm_leaves_no_complete_seed():
    labels = [("student", "forward"), ("student", "reverse"), ("teacher", "forward")]
    some = [scored({ROLLOUT: r, KL: k}, 1, [1]) for r, k in labels]
    runs = gather(some, allow_missing=True)
    assert runs.complete.seeds == ()
    with pytest.raises(ValueError, match="no seed is complete"):
        runs.grid("accuracy")


def test_no_cells_and_double_names_are_errors():
    with pytest.raises(ValueError, match="there are no cells"):
        gather([])
    with pytest.raises(ValueError, match="'student-s1' stands twice"):
        gather([cells()[0], cells()[0]])


def test_cells_of_two_studies_do_not_mix():
    with pytest.raises(ValueError, match="vary other factors"):
        gather([*cells(), scored({RATE: "1"}, 1, [1])])


def test_arms_follow_the_declared_order_of_levels(rate_runs: Runs):
    assert [arm.key for arm in rate_runs.arms][:3] == [
        ("student", "forward", "0.0005"),
        ("student", "forward", "0.0025"),
        ("student", "reverse", "0.0005"),
    ]
    assert rate_runs.arms[0].rate == 5e-4
    assert rate_runs.arms[0].series == "student · forward"


def test_what_is_not_varied_is_read_from_the_study():
    runs = gather(planted(factors={RATE: ("0.001", "0.002")}, items=4, steps=2), study=study())
    assert {(arm.rollout, arm.kl) for arm in runs.arms} == {("student", "forward")}


def test_places_on_the_spectrum_are_read_from_labels():
    labels = ("spectrum(lam=-1)", "spectrum(lam=0.5, alpha=0.1)", "student")
    runs = gather([scored({ROLLOUT: label}, 1, [1]) for label in labels])
    assert [arm.lam for arm in runs.arms] == [-1.0, 0.5, None]


def test_base_evaluations_stand_in_for_step_zero(rate_runs: Runs):
    cell = rate_runs.runs[0].cell
    bare = type(cell)(**{**vars(cell), "evaluations": {150: cell.evaluations[150]}})
    alone = gather([bare]).runs[0]
    helped = gather([bare], base_evaluations={cell.base: cell.evaluations[0]}).runs[0]
    assert "skills_drop" not in alone.final
    assert helped.final["skills_drop"] == rate_runs.runs[0].final["skills_drop"]


def test_grid_names_a_metric_that_was_not_measured():
    with pytest.raises(ValueError, match="not every cell measured 'harder'"):
        gather(cells()).grid("harder")
