"""Cells: the product, its labels, the proof of control, and refusals that name factor and level."""

import pytest
from fakes import make_study
from hypothesis import given
from hypothesis import strategies as st

from fractionate.config import StudyFileError
from fractionate.study.cells import confounds, differences, expand, prove_control


@pytest.fixture
def study(tmp_path):
    return lambda **changes: make_study(tmp_path / "models", **changes)


def test_cells_are_the_product_of_all_levels_and_seeds(study):
    cells = expand(
        study(
            vary={"rollout": [{"kind": "student"}, {"kind": "teacher"}], "lr": [5e-4, 1e-3, 2.5e-3]}
        )
    )
    assert len(cells) == 2 * 3 * 2
    assert len({(c.seed, *c.factors.values()) for c in cells}) == 12
    assert len({c.name for c in cells}) == 12


def test_a_study_that_varies_nothing_has_one_cell_per_seed(study):
    cells = expand(study(vary={}))
    assert [(c.name, c.factors, c.seed) for c in cells] == [
        ("seed=42", {}, 42),
        ("seed=43", {}, 43),
    ]


def test_cells_hold_the_levels_applied_and_one_seed(study):
    last = expand(study())[-1].study
    assert last.method.rollout.kind == "teacher"
    assert last.method.divergence.kind == "reverse"
    assert last.seeds == (43,)
    assert last.vary == {}


def test_aliases_become_paths_and_names_stay_short(study):
    cell = expand(study(vary={"lr": ["5e-4", 2.5e-3]}))[0]
    assert cell.factors == {"optimizer.lr": "0.0005"}
    assert cell.name == "lr=0.0005 seed=42"


def test_labels_name_the_fields_that_differ_from_the_default(study):
    levels = [
        {"kind": "spectrum", "lam": 0.5},
        {"kind": "coin"},
        {"kind": "coin", "per": "sequence"},
    ]
    labels = [c.factors["method.rollout"] for c in expand(study(vary={"rollout": levels}))[:3]]
    assert labels == ["spectrum(lam=0.5)", "coin", "coin(per=sequence)"]


def test_a_level_without_kind_changes_the_named_fields_only(study):
    level = {"param_dtype": "float32", "state_dtype": "float32", "compute_dtype": "float32"}
    cells = expand(study(optimizer={"lr": 3e-3}, vary={"optimizer": [{}, level]}, seeds=[42]))
    assert [c.study.optimizer.lr for c in cells] == [3e-3, 3e-3]
    assert cells[0].factors["optimizer"] == "base"
    assert cells[1].factors["optimizer"].startswith("param_dtype=float32,")


def test_a_factor_inside_another_is_crossed_with_it(study):
    vary = {"optimizer": [{}, {"clip": None}], "optimizer.lr": [1e-3, 1e-4]}
    cells = expand(study(vary=vary, seeds=[42]))
    assert [(c.study.optimizer.clip, c.study.optimizer.lr) for c in cells] == [
        (1.0, 1e-3), (1.0, 1e-4), (None, 1e-3), (None, 1e-4)
    ]  # fmt: skip


def test_a_level_that_sets_another_factor_is_refused(study):
    vary = {"optimizer.lr": [1e-3], "optimizer": [{}, {"lr": 1e-4}]}
    with pytest.raises(StudyFileError, match=r"vary\.optimizer\[1\] sets lr"):
        expand(study(vary=vary))


def test_a_factor_inside_a_part_is_refused(study):
    vary = {"method.rollout": [{"kind": "student"}], "method.rollout.kind": ["student", "teacher"]}
    with pytest.raises(StudyFileError, match=r"vary\.method\.rollout\.kind lies inside"):
        expand(study(vary=vary))


def test_two_seeds_of_one_base_share_it(study):
    cells = expand(study(vary={}, seeds=[42, 43, 44]))
    assert [c.base for c in cells] == [0, 1, 0]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"rollout": [{"kind": "student"}, {"kind": "spectrum", "lam": 3}]},
         r"vary\.rollout\[1\]: method\.rollout\.lam: .*less than or equal to 2"),
        ({"method.rollout": [{"kind": "student"}, {"kind": "techer"}]},
         r"vary\.method\.rollout\[1\]: method\.rollout\.kind: unknown kind 'techer'"),
        ({"rollout": ["student"]}, r"vary\.rollout\[0\]: method\.rollout: "),
        ({"lr": [1e-3, -1]}, r"vary\.lr\[1\]: optimizer\.lr: .*greater than 0"),
        ({"kl": [{"kind": "jsd"}, {"kind": "jsd", "betta": 0.1}]},
         r"vary\.kl\[1\]: method\.divergence\.betta: unknown field"),
    ],
)  # fmt: skip
def test_an_invalid_level_is_named_with_its_factor(study, vary, message):
    with pytest.raises(StudyFileError, match=message):
        expand(study(vary=vary))


def test_an_impossible_combination_names_the_levels_that_meet(study):
    vary = {
        "method.support": [{"kind": "full"}, {"kind": "topk", "k": 8}],
        "method.divergence": [{"kind": "forward"}, {"kind": "jsd"}],
        "optimizer.lr": [1e-3, 1e-4],
    }
    with pytest.raises(StudyFileError) as error:
        expand(study(vary=vary))
    (line,) = str(error.value).splitlines()
    assert line.startswith("vary.method.support[1] with vary.method.divergence[1]: method: ")
    assert "not for 'jsd'. Use support 'full'" in line


@pytest.mark.parametrize("levels", [[5e-4, "5e-4"], [1.2345678e-3, 1.2345679e-3]])
def test_two_levels_with_one_label_are_refused(study, levels):
    with pytest.raises(StudyFileError, match=r"vary\.lr\[0\] and vary\.lr\[1\] are the same level"):
        expand(study(vary={"lr": levels}))


def test_two_levels_with_one_configuration_are_refused(study):
    with pytest.raises(StudyFileError, match="are the same level"):
        expand(study(vary={"optimizer": [{}, {"warmup": 10}]}))


def test_cells_of_a_contrast_differ_in_the_factor_contrasted_only(study):
    cells = expand(study(seeds=[42]))
    for a in cells:
        for b in cells:
            contrasted = {path for path in a.factors if a.factors[path] != b.factors[path]}
            changed = {path.rsplit(".", 1)[0] for path in differences(a.study, b.study)}
            assert changed == contrasted


def test_the_proof_of_control_finds_a_stray_difference(study):
    a, *others = expand(study(seeds=[42]))
    stray = a.study.model_copy(update={"lengths": a.study.lengths.model_copy(update={"prompt": 9})})
    broken = type(a)(a.name, stray, a.factors, a.seed, a.base)
    with pytest.raises(RuntimeError, match=r"also differs in lengths\.prompt"):
        prove_control([broken, *others])


def test_student_against_teacher_at_unequal_temperatures_is_confounded(study):
    (found,) = confounds(expand(study()))
    assert found.levels == ("student", "teacher")
    assert "student_rollout 1, temperature.teacher_rollout 0.5" in found.also
    assert "{student_rollout: 0.5, teacher_rollout: 0.5}" in found.offer


def test_matched_temperatures_are_not_confounded(study):
    method = {"temperature": {"student_rollout": 0.5, "teacher_rollout": 0.5}}
    assert confounds(expand(study(method=method))) == ()


def test_the_offered_cells_are_not_confounded(study):
    matched = [{"student_rollout": t, "teacher_rollout": t} for t in (1, 0.5)]
    cells = expand(study(vary={"method.temperature": matched,
                               "rollout": [{"kind": "student"}, {"kind": "teacher"}]}))  # fmt: skip
    assert confounds(cells) == ()


@given(
    rates=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4, unique_by=lambda x: f"{x:g}"),
    kinds=st.lists(st.sampled_from(["student", "teacher", "coin", "skd"]), min_size=1, unique=True),
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True),
)
def test_cells_are_the_product_for_any_levels(tmp_path_factory, rates, kinds, seeds):
    folder = tmp_path_factory.getbasetemp() / "cells" / "models"
    vary = {"lr": rates, "rollout": [{"kind": kind} for kind in kinds]}
    cells = expand(make_study(folder, vary=vary, seeds=seeds))
    wanted = {(f"{lr:g}", kind, seed) for lr in rates for kind in kinds for seed in seeds}
    assert {(*c.factors.values(), c.seed) for c in cells} == wanted
    assert len(cells) == len(wanted)
