"""Gradients of the four basic arms at one checkpoint."""

import math

import pytest
import torch

import tiny
from fractionate.config import Temperature
from fractionate.distill import arms
from fractionate.distill.arms import ArmSettings, measure_arms
from fractionate.distill.prompts import Prompt
from fractionate.models.load import wrap
from fractionate.tasks.base import Problem

ARMS = ("forward/student", "reverse/student", "forward/teacher", "reverse/teacher")


def prompts(n):
    return [Prompt(Problem(f"p{i}", (), {}), (1, 3 + i % 20), (1, 3 + i % 20)) for i in range(n)]


def settings(**changes):
    fields = {
        "prompts": 3,
        "buckets": 4096,
        "temperature": Temperature(student_rollout=1.0, teacher_rollout=1.0, teacher_loss=1.0),
        "max_new_tokens": 6,
        "seed": 0,
    }
    return ArmSettings(**{**fields, **changes})


def model(seed, **changes):
    return wrap(tiny.llama(seed, **changes), tiny.tokenizer())


def measured(student, teacher, n=12, **changes):
    records = measure_arms(student, teacher, prompts(n), settings(**changes))
    return {(record.suite, record.item): record.value for record in records}


@pytest.fixture(scope="module")
def found():
    return measured(model(1), model(2, width=64))


def test_every_arm_pair_and_prompt_has_its_numbers(found):
    for suite in ("gradient_norm", "gradient_signal", "gradient_noise", "gradient_snr"):
        assert {item for name, item in found if name == suite} == set(ARMS)
    pairs = {item for name, item in found if name == "gradient_cosine"}
    assert len(pairs) == 6
    assert "forward/student ~ reverse/teacher" in pairs
    for writer in ("student", "teacher"):
        for suite in ("policy_tv", "policy_tv_token"):
            values = [v for (name, _), v in found.items() if name == f"{suite}:{writer}"]
            assert len(values) == 12
            assert all(0.0 <= value <= 1.0 for value in values)


def test_signal_and_noise_add_up_to_the_norm(found):
    for arm in ARMS:
        square = found["gradient_norm", arm] ** 2
        parts = found["gradient_signal", arm] + found["gradient_noise", arm] / 4
        assert square == pytest.approx(parts, rel=1e-9)
        snr = found["gradient_signal", arm] / found["gradient_noise", arm]
        assert found["gradient_snr", arm] == pytest.approx(snr)


def test_the_plain_cosine_is_nearer_to_zero_than_the_debiased_one(found):
    for (suite, item), value in found.items():
        if suite == "gradient_cosine_debiased" and value is not None:
            assert abs(found["gradient_cosine", item]) <= abs(value) + 1e-12


def test_equal_models_have_equal_policies_and_no_gradient():
    same = measured(model(1), model(1))
    for (suite, item), value in same.items():
        if suite.startswith("policy_tv"):
            assert value == pytest.approx(0.0, abs=1e-6)
        if suite == "gradient_norm":
            assert value == pytest.approx(0.0, abs=1e-6), item


def test_the_gradient_is_that_of_the_mean_loss(monkeypatch):
    student, teacher = model(1), model(2, width=64)
    whole = measured(student, teacher)
    monkeypatch.setattr(arms, "TOKENS_PER_PASS", 8)
    split = measured(student, teacher)
    for key, value in whole.items():
        if key[0] == "gradient_norm":
            assert split[key] == pytest.approx(value, rel=1e-5)


def test_the_student_keeps_its_weights_and_has_no_gradient_left():
    student = model(1)
    before = [parameter.clone() for parameter in student.module.parameters()]
    measured(student, model(2, width=64))
    for old, new in zip(before, student.module.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None


def test_a_projection_keeps_norms_nearly(monkeypatch):
    student, teacher = model(1), model(2, width=64)
    whole = measured(student, teacher)
    monkeypatch.setattr(arms, "EXACT_PARAMETERS", 0)
    near = measured(student, teacher, buckets=65_536)
    for arm in ARMS:
        assert near["gradient_norm", arm] == pytest.approx(whole["gradient_norm", arm], rel=0.05)


def test_reverse_kl_on_far_laws_has_the_longer_gradient(found):
    assert all(math.isfinite(found["gradient_norm", arm]) for arm in ARMS)
    assert found["gradient_norm", "forward/student"] > 0


def test_too_few_prompts_are_refused():
    with pytest.raises(ValueError, match="do not fill two micro-gradients of 3"):
        measured(model(1), model(2, width=64), n=5)
