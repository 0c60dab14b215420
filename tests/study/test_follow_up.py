"""RLVR and teacher training in a plan: what is chosen, resolved and hashed."""

import importlib.util

import pytest
from fakes import make_study

from fractionate.config import Adaptation, Lora, StudyFileError
from fractionate.study.dimensions import PUBLISHED
from fractionate.study.hardware import fallback_note, settled
from fractionate.study.plan import make_plan
from fractionate.study.training_cost import adapter_parameters

RLVR = {"task": {"kind": "countdown", "operands": 4}}


def _plan(folder, **changes):
    return make_plan(make_study(folder, **changes))


def test_every_cell_goes_on_unless_some_are_chosen(tmp_path):
    assert len(_plan(tmp_path / "m", rlvr=RLVR).of_kind("rlvr")) == 8
    chosen = {**RLVR, "cells": {"rollout": ["teacher"], "kl": ["reverse"]}}
    plan = _plan(tmp_path / "m", rlvr=chosen)
    assert [stage.name for stage in plan.of_kind("rlvr")] == [
        "RLVR: rollout=teacher kl=reverse seed=42",
        "RLVR: rollout=teacher kl=reverse seed=43",
    ]
    assert len(plan.of_kind("rlvr_evaluation")) == 4


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"lr": ["0.0005"]}, "'lr' is no factor of this study"),
        ({"rollout": ["teecher"]}, "'teecher' is no level. Its levels: student, teacher"),
        ({"rollout": []}, "chooses no cell"),
    ],
)
def test_a_choice_of_cells_that_there_are_not_names_what_there_is(tmp_path, cells, message):
    with pytest.raises(StudyFileError, match=message):
        _plan(tmp_path / "m", rlvr={**RLVR, "cells": cells})


def test_rlvr_leaves_the_keys_of_the_distillation_alone(tmp_path):
    plain, followed = (_plan(tmp_path / "m", **extra) for extra in ({}, {"rlvr": RLVR}))
    for kind in ("cell", "cell_evaluation", "corpus", "teacher_evaluation"):
        assert [s.key for s in plain.of_kind(kind)] == [s.key for s in followed.of_kind(kind)]


def test_how_often_a_checkpoint_is_made_and_which_cells_go_on_change_no_key(tmp_path):
    one, other = (
        _plan(tmp_path / "m", rlvr={**RLVR, "checkpoint_every": every}) for every in (5, 50)
    )
    assert [s.key for s in one.of_kind("rlvr")] == [s.key for s in other.of_kind("rlvr")]


def test_trained_teachers_change_what_they_teach_and_the_first_stage_is_shared(tmp_path):
    short = _plan(tmp_path / "m", teacher_training=[{"kind": "sft"}])
    both = _plan(tmp_path / "m", teacher_training=[{"kind": "sft"}, {"kind": "grpo"}])
    trained = [stage.key for stage in both.of_kind("teacher_training")]
    assert short.of_kind("teacher_training")[0].key == trained[0]
    assert {s.key for s in short.of_kind("cell")}.isdisjoint(s.key for s in both.of_kind("cell"))


def test_auto_is_resolved_into_the_key_and_the_plan_says_what_fell_back(tmp_path):
    plan = _plan(tmp_path / "m", rlvr=RLVR)
    adaptation = plan.of_kind("rlvr")[0].config["rlvr"]["adaptation"]
    assert (adaptation["quantization"], adaptation["optimizer"], adaptation["dtype"]) == (
        "none",
        "adamw",
        "float32",
    )
    assert "no four-bit base and no 8-bit AdamW here" in plan.describe()


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_takes_four_and_eight_bits_where_bitsandbytes_is(monkeypatch, there):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if there else None)
    asked = Adaptation()
    resolved = settled(asked, device="cuda", field="rlvr")
    assert resolved.dtype == "bfloat16"
    assert (resolved.quantization, resolved.optimizer) == (
        ("nf4", "adamw_8bit") if there else ("none", "adamw")
    )
    assert (fallback_note(asked, resolved, field="rlvr") is None) == there


def test_four_bits_demanded_on_a_cpu_are_refused_with_the_mend():
    with pytest.raises(StudyFileError, match=r"rlvr.adaptation.quantization: 'nf4' needs a GPU"):
        settled(Adaptation(quantization="nf4"), device="cpu", field="rlvr")


def test_the_paper_s_adapters_are_a_seventh_of_its_student():
    student = PUBLISHED["meta-llama/Llama-3.2-1B"]
    trained = adapter_parameters(student, Lora().model_dump())
    assert trained == 180_355_072
    assert 0.14 < trained / student.parameters < 0.15


def test_the_cost_of_rlvr_is_counted(tmp_path):
    plan = _plan(tmp_path / "m", rlvr=RLVR)
    costs = [cost for cost in plan.cost().stages if cost.kind == "rlvr"]
    assert len(costs) == 8
    for cost in costs:
        assert cost.tokens.generated == cost.tokens.trained == 300 * 8 * 16 * 1024
        assert min(cost.flops, cost.memory, cost.disk) > 0
