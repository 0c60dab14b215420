import pytest
from planted import KL, RATE, ROLLOUT, planted, study

from fractionate.analysis.designs import Design, designs, low_and_high, peak_step
from fractionate.analysis.runs import Runs, gather

CLIP = "optimizer.clip"
SWAP = "method.temperature"


def runs_of(factors: dict[str, tuple[str, ...]], **changes: object) -> Runs:
    cells = planted(factors=factors, items=5, steps=2, seeds=(42, 43), full=False)
    return gather(cells, study=study(**changes))


def named(found: tuple[Design, ...]) -> list[str]:
    return [design.name for design in found]


def test_a_plain_study_is_one_design(rate_runs: Runs):
    (design,) = designs((rate_runs,))
    assert design.name == "planted"
    assert design.deviations == ()
    assert design.is_grid
    assert not design.is_spectrum
    assert [arm.key for arm in design.runs.arms] == [arm.key for arm in rate_runs.arms]


def test_further_factors_split_a_study_and_stay_known():
    found = designs((runs_of({ROLLOUT: ("student", "teacher"), CLIP: ("1", "none")}),))
    assert named(found) == ["planted (clip 1)", "planted (clip none)"]
    assert [design.fact(CLIP) for design in found] == ["1", "none"]
    assert found[1].deviations == ("clip none",)
    assert found[0].differs(found[1]) == [CLIP]
    assert all(tuple(design.runs.levels) == (ROLLOUT,) for design in found)


def test_a_group_of_fields_is_read_field_by_field():
    labels = ("base", "student_rollout=0.5,teacher_rollout=1")
    found = designs((runs_of({ROLLOUT: ("student", "teacher"), SWAP: labels}),))
    swapped = found[1]
    assert swapped.fact("method.temperature.student_rollout") == "0.5"
    assert swapped.fact("method.temperature.teacher_rollout") == "1"
    assert found[0].fact("method.temperature.teacher_rollout") == "0.5"


def test_two_studies_that_differ_in_one_field_are_a_pair():
    one, other = designs(
        (
            runs_of({ROLLOUT: ("student", "teacher")}, name="free", optimizer={"clip": None}),
            runs_of({ROLLOUT: ("student", "teacher")}, name="clipped"),
        )
    )
    assert (one.study, other.study) == ("clipped", "free")
    assert one.differs(other) == [CLIP]


def test_families_are_told_apart_by_their_models_not_by_what_students_know():
    factors = {ROLLOUT: ("student", "teacher")}
    worlds = ({}, {"students": "latent"}, {"family": "qwen"})
    found = designs(
        [
            runs_of(factors, name=f"w{i}", world={"kind": "sandbox", **world})
            for i, world in enumerate(worlds)
        ]
    )
    assert found[0].family == found[1].family != found[2].family
    assert found[2].study == "w2"


def test_a_lagging_student_is_the_student_where_there_is_no_other():
    (design,) = designs((runs_of({ROLLOUT: ("student(lag=4)", "teacher")}),))
    assert design.policies == {"student", "teacher"}
    (design,) = designs((runs_of({ROLLOUT: ("student", "student(lag=4)", "teacher")}),))
    assert len(design.runs.arms) == 2
    assert len(design.runs.runs) == 4


def test_only_the_two_rates_of_the_claims_are_kept():
    factors = {KL: ("forward", "reverse"), RATE: ("0.0005", "0.001", "0.0025", "0.005")}
    kept = low_and_high(runs_of(factors))
    assert {arm.rate for arm in kept.arms} == {0.0005, 0.0025}


@pytest.mark.parametrize(("values", "step"), [({0: 1.0, 5: 3.0, 9: 3.0}, 5), ({2: 1.0}, 2)])
def test_the_peak_is_the_earliest_of_the_best(values: dict[int, float], step: int):
    assert peak_step(values) == step
