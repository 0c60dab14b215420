"""Which tensors compute, which are stored, which take the updates."""

import pytest
import torch

from cases import EXAMPLES
from fractionate.config import Optimizer
from fractionate.distill.student import NonFiniteUpdateError, Student, learning_rate
from fractionate.models.load import wrap
from tiny import llama, tokenizer

PRECISIONS = {
    "float32": Optimizer(param_dtype="float32", state_dtype="float32", compute_dtype="float32"),
    "bfloat16": Optimizer(),
    "bfloat16, float32 arithmetic": Optimizer(compute_dtype="float32"),
    "float32 master": Optimizer(
        master_weights="float32", state_dtype="float32", compute_dtype="float32"
    ),
}


def _student(optimizer: Optimizer) -> Student:
    model = wrap(llama(3), tokenizer())
    return Student(model, optimizer)


def _gradient(student: Student, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in student.model.module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = noise.to(parameter.dtype)


def _with(optimizer: Optimizer, **changes) -> Optimizer:
    return optimizer.model_copy(update=changes)


def test_warm_up_starts_at_zero_as_in_the_hugging_face_schedule():
    optimizer = Optimizer(lr=1e-5, warmup=10)
    rates = [learning_rate(step, optimizer) for step in (0, 1, 5, 10, 149)]
    assert rates == pytest.approx(EXAMPLES["wu"], rel=1e-12)


def test_float32_update_is_torch_adamw():
    student = _student(_with(PRECISIONS["float32"], clip=None))
    reference = llama(3)
    adam = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(3):
        _gradient(student, step)
        for ours, theirs in zip(
            student.model.module.parameters(), reference.parameters(), strict=True
        ):
            theirs.grad = ours.grad.clone()
        student.update(1e-3)
        adam.step()
    for name, tensor in reference.named_parameters():
        torch.testing.assert_close(student.weights()[name], tensor.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", PRECISIONS)
def test_weights_are_stored_in_the_declared_dtype_and_computed_on(name: str):
    student = _student(PRECISIONS[name])
    _gradient(student, 0)
    student.update(1e-3)
    computed = dict(student.model.module.named_parameters())
    for key, tensor in student.weights().items():
        assert str(tensor.dtype) == f"torch.{PRECISIONS[name].param_dtype}"
        assert torch.equal(computed[key].detach().float(), tensor.float())


def test_small_updates_are_lost_in_bfloat16_and_kept_by_a_master_copy():
    moved = {}
    for name in ("bfloat16", "float32 master"):
        student = _student(_with(PRECISIONS[name], clip=None))
        before = student.weights()
        for _ in range(20):
            _gradient(student, 7)
            student.update(1e-6)
        after = student.weights()
        count = sum(int((before[k] != after[k]).sum()) for k in before)
        moved[name] = count / sum(t.numel() for t in before.values())
    assert moved["bfloat16"] < 0.1
    assert moved["float32 master"] > 2 * moved["bfloat16"]


def test_clipping_scales_the_gradient_and_reports_the_norm_before_it():
    student = _student(_with(PRECISIONS["float32"], clip=1.0))
    _gradient(student, 0)
    gradients = [p.grad.flatten() for p in student.model.module.parameters()]
    norm = float(torch.cat(gradients).norm())
    update = student.update(0.0)
    assert update.grad_norm == pytest.approx(norm, rel=1e-5)
    assert update.clip_coefficient == pytest.approx(1.0 / (norm + 1e-6), rel=1e-5)


def test_no_clipping_leaves_the_gradient_alone():
    student = _student(_with(PRECISIONS["float32"], clip=None))
    _gradient(student, 0)
    assert student.update(0.0).clip_coefficient == 1.0


@pytest.mark.parametrize("name", PRECISIONS)
def test_resume_is_bit_exact(name: str):
    straight, first = _student(PRECISIONS[name]), _student(PRECISIONS[name])
    for step in range(4):
        _gradient(straight, step)
        straight.update(1e-3)
    for step in range(2):
        _gradient(first, step)
        first.update(1e-3)
    second = _student(PRECISIONS[name])
    second.load_state({key: value.clone() for key, value in first.state().items()})
    for step in range(2, 4):
        _gradient(second, step)
        second.update(1e-3)
    for key, tensor in straight.state().items():
        assert torch.equal(second.state()[key], tensor), key


def test_a_gradient_that_is_not_finite_changes_nothing():
    student = _student(PRECISIONS["float32"])
    before = {name: tensor.clone() for name, tensor in student.weights().items()}
    _gradient(student, 0)
    next(student.model.module.parameters()).grad[0] = float("nan")
    with pytest.raises(NonFiniteUpdateError, match=r"optimizer\.lr"):
        student.update(1e-3)
    assert all(torch.equal(before[k], v) for k, v in student.weights().items())


@pytest.mark.parametrize(("clip", "advised"), [(1.0, False), (None, True)])
def test_clipping_is_advised_only_where_it_is_off(clip, advised):
    student = Student(wrap(llama(0), tokenizer()), Optimizer(clip=clip))
    _gradient(student, 0)
    next(student.model.module.parameters()).grad[0] = float("nan")
    with pytest.raises(NonFiniteUpdateError) as error:
        student.update(1e-3)
    assert ("set optimizer.clip" in str(error.value)) == advised
