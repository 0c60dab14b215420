"""RLVR and teacher training in a study file: the paper's settings, and what is refused."""

import pytest
from pydantic import ValidationError

from fractionate.config import Adaptation, Grpo, GrpoTraining, Rlvr, StudyFileError
from fractionate.config.files import parse_study

SANDBOX = {"name": "x", "world": {"kind": "sandbox"}}
COUNTDOWN = {"kind": "countdown", "operands": 4}
MODELS = {"name": "x", "models": {"student": "a/s", "teacher": "a/t"}}
TABLE = {"kind": "table", "path": "rows.jsonl", "prompt": "p"}


def test_the_defaults_are_the_paper_s():
    rlvr = Rlvr(task=COUNTDOWN)
    assert (rlvr.steps, rlvr.lr, rlvr.warmup, rlvr.clip) == (300, 2e-6, 30, 1.0)
    assert (rlvr.group, rlvr.generation_batch, rlvr.accumulation) == (8, 48, 16)
    assert (rlvr.temperature, rlvr.top_p, rlvr.completion, rlvr.seed) == (1.0, 0.95, 1024, 42)
    assert (rlvr.correct_reward, rlvr.format_reward) == (2.0, 0.0)
    teacher = GrpoTraining()
    assert (teacher.steps, teacher.lr, teacher.warmup) == (500, 1e-5, 50)
    assert (teacher.generation_batch, teacher.completion) == (32, 824)
    assert (teacher.correct_reward, teacher.format_reward) == (2.0, 0.5)


def test_a_study_with_rlvr_and_a_trained_teacher_survives_a_round_trip():
    study = parse_study(
        {
            **SANDBOX,
            "rlvr": {"task": COUNTDOWN, "cells": {"kl": ["forward"]}},
            "teacher_training": [{"kind": "sft"}, {"kind": "grpo", "use": 450}],
        }
    )
    assert parse_study(study.model_dump(mode="json")) == study


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"generation_batch": 20}, "generation_batch 20 is no multiple of group 8"),
        ({"micro_batch": 7}, "generation_batch 48 is no multiple of micro_batch 7"),
        ({"steps": 30}, "warmup 30 leaves no update at the full rate"),
    ],
)
def test_batches_that_do_not_divide_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Grpo(**fields)


def test_a_four_bit_base_must_be_frozen():
    with pytest.raises(ValidationError, match="lora is null"):
        Adaptation(lora=None, quantization="nf4")


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (
            {**SANDBOX, "rlvr": {"task": {"kind": "countdown", "operands": 5}}},
            "of rlvr.task only",
        ),
        (
            {**SANDBOX, "rlvr": {"task": COUNTDOWN, "evaluate": {"at": [301]}}},
            r"rlvr.evaluate.at \[301\] lies beyond rlvr.steps 300",
        ),
        (
            {**MODELS, "rlvr": {"task": COUNTDOWN, "evaluate": {"forgetting": "skills"}}},
            "are skills of the sandbox",
        ),
        (
            {**MODELS, "rlvr": {"task": {**TABLE, "grade": "none"}}},
            "rlvr.task.grade is 'none'",
        ),
        (
            {**MODELS, "rlvr": {"task": {**COUNTDOWN, "test": 100}}},
            "rlvr.evaluate.accuracy.items is 200",
        ),
        (
            {**MODELS, "task": {**TABLE, "answer": "a"}, "teacher_training": [{"kind": "sft"}]},
            "task.completion names no column",
        ),
        (
            {**MODELS, "teacher_training": [{"kind": "grpo", "use": 501}]},
            "use 501 lies beyond steps 500",
        ),
    ],
)
def test_what_the_world_cannot_reward_or_measure_is_refused_by_field(study, message):
    with pytest.raises(StudyFileError, match=message):
        parse_study(study)
