"""Infinities, arguments and memory of the fused loss."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fractionate.losses import linear_divergence, tiles
from losses.heads import (
    fused,
    operands,
    student_gradients,
    weights,
)
from losses.laws import FUSED

every_kind = pytest.mark.parametrize("name", list(FUSED))
both_forms = pytest.mark.parametrize("weighted", [False, True])


# Infinities: a hidden state of 1 makes the head's only column the logits.


def bare(student, teacher):
    one = torch.ones(2, 1, dtype=torch.float64)
    return {
        "student_hidden": one.clone().requires_grad_(),
        "student_head": torch.tensor(student, dtype=torch.float64)[:, None].requires_grad_(),
        "teacher_hidden": one,
        "teacher_head": torch.tensor(teacher, dtype=torch.float64)[:, None],
    }


NEVER = float("-inf")


@every_kind
def test_a_token_impossible_for_both_adds_nothing(name):
    kind, parameter = FUSED[name]
    call = {"kind": kind, "parameter": parameter, "token_weights": torch.ones(2).double()}
    given, small = bare([1, NEVER, 0, -1], [0, NEVER, 2, 0]), bare([1, 0, -1], [0, 2, 0])
    wide = linear_divergence(**given, **call, return_stats=True)
    narrow = linear_divergence(**small, **call, return_stats=True)
    torch.testing.assert_close(wide[0], narrow[0])
    for field in (
        "forward_kl",
        "reverse_kl",
        "student_entropy",
        "reverse_grad_norm",
        "log_ratio_range",
    ):
        torch.testing.assert_close(getattr(wide[1], field), getattr(narrow[1], field))
    (got,) = torch.autograd.grad(wide[0], given["student_head"])
    (expected,) = torch.autograd.grad(narrow[0], small["student_head"])
    torch.testing.assert_close(got[[0, 2, 3]], expected)
    assert float(got[1]) == 0


@pytest.mark.parametrize("name", ["forward", "mixed_0.25", "entropy_aware_0.5"])
@pytest.mark.parametrize("chunk_size", [1, None])
def test_student_without_mass_is_refused_with_position_and_token(name, chunk_size):
    kind, parameter = FUSED[name]
    given = bare([1, 0, NEVER], [0, 0, 0])
    given["student_hidden"] = torch.tensor([[1.0], [1.0]]).double()
    with pytest.raises(ValueError, match=r"forward KL is infinite at position \(0,\), token id 2"):
        linear_divergence(**given, kind=kind, parameter=parameter, chunk_size=chunk_size)


def test_positions_count_over_chunks():
    given = bare([0, 0], [0, 0]) | {
        "student_hidden": torch.ones(3, 1).double(),
        "teacher_hidden": torch.tensor([[1e-200], [1e-200], [1e200]], dtype=torch.float64),
        "teacher_head": torch.tensor([[0.0], [-1e200]], dtype=torch.float64),
    }
    with pytest.raises(ValueError, match=r"reverse KL is infinite at position \(2,\), token id 1"):
        linear_divergence(**given, kind="reverse", chunk_size=2)


@pytest.mark.parametrize("name", ["reverse", "mixed_0.25", "entropy_aware_0.5"])
@both_forms
def test_teacher_without_mass_is_refused(name, weighted):
    kind, parameter = FUSED[name]
    extra = {"token_weights": torch.ones(2).double()} if weighted else {}
    with pytest.raises(ValueError, match=r"reverse KL is infinite at position \(0,\), token id 1"):
        linear_divergence(**bare([1, 0, 2], [0, NEVER, 0]), kind=kind, parameter=parameter, **extra)


@pytest.mark.parametrize("beta", [0, 0.5, 1])
def test_jsd_never_raises_and_its_statistics_say_infinite(beta):
    value, stats = linear_divergence(
        **bare([1, 0, 2], [0, NEVER, 0]), kind="jsd", parameter=beta, return_stats=True
    )
    assert bool(value.isfinite().all())
    assert bool(stats.reverse_kl.isinf().all())
    assert bool(stats.reverse_grad_norm.isinf().all())
    assert bool(stats.log_ratio_range.isinf().all())
    assert bool(stats.forward_kl.isfinite().all())


# Arguments.


@pytest.mark.parametrize(
    ("kind", "parameter", "message"),
    [
        ("kl", None, "kind='kl' is unknown"),
        ("forward", 0.5, "takes no parameter"),
        ("jsd", None, "needs parameter, its beta"),
        ("mixed", None, "needs parameter, its reverse_weight"),
        ("entropy_aware", None, "needs parameter, its threshold"),
        ("jsd", 1.5, "beta=1.5"),
        ("mixed", -0.1, "reverse_weight=-0.1"),
    ],
)
def test_kind_and_parameter_must_fit(kind, parameter, message):
    with pytest.raises(ValueError, match=message):
        linear_divergence(**operands(), kind=kind, parameter=parameter)


@pytest.mark.parametrize("name", ["student_temperature", "teacher_temperature"])
def test_temperatures_must_be_positive(name):
    with pytest.raises(ValueError, match=name):
        linear_divergence(**operands(), kind="forward", **{name: 0})


def test_chunk_size_must_be_positive():
    with pytest.raises(ValueError, match="chunk_size"):
        linear_divergence(**operands(), kind="forward", chunk_size=0)


def test_the_threshold_of_the_gate_must_be_a_number():
    with pytest.raises(ValueError, match="threshold is NaN"):
        linear_divergence(**operands(), kind="entropy_aware", parameter=float("nan"))


# Weights.


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_another_dtype_are_used_in_that_of_the_logits(name, dtype):
    given = operands(dtype)
    value = fused(name, given, token_weights=weights(dtype=torch.float64))
    expected = fused(name, given, token_weights=weights(dtype=torch.float32))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected)
    for ours, theirs in zip(
        student_gradients(value, given), student_gradients(expected, given), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@every_kind
@both_forms
def test_a_row_of_weight_zero_stays_out_even_where_it_is_nan(name, weighted):
    given, per_token = operands(), weights()
    per_token[3] = 0
    broken = {key: value.detach().clone() for key, value in given.items()}
    broken["student_hidden"][3] = float("nan")
    for key in ("student_hidden", "student_head"):
        broken[key].requires_grad_()
    sums = []
    for case in (given, broken):
        if weighted:
            sums.append(fused(name, case, token_weights=per_token))
        else:
            sums.append(fused(name, case)[per_token != 0] @ per_token[per_token != 0])
    torch.testing.assert_close(sums[1], sums[0])
    gradients = [student_gradients(s, c) for s, c in zip(sums, (given, broken), strict=True)]
    for clean, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, clean)


# Memory.


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements of any tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.itemsize)
        return result


@every_kind
@both_forms
def test_the_whole_logits_never_exist(name, weighted):
    n, v, chunk_size = 256, 512, 8
    given = operands(torch.float32, n=n, v=v)
    extra = {"token_weights": torch.ones(n)} if weighted else {}
    with LargestTensor() as seen:
        value = fused(name, given, chunk_size=chunk_size, return_stats=True, **extra)[0]
        value.sum().backward()
    assert 2 * chunk_size * v <= seen.elements < n * v / 8


@every_kind
@pytest.mark.parametrize("budget", [2**19, 2**20])
def test_chunks_keep_to_the_budget(name, budget):
    n, v = 512, 2048
    given = operands(torch.float32, n=n, v=v)
    call = {"token_weights": weights(n, dtype=torch.float32), "chunk_bytes": budget}
    with LargestTensor() as seen:
        fused(name, given, **call)
    assert budget / 4 < seen.elements * 4 <= budget < n * v * 4


def test_the_budget_must_be_positive():
    with pytest.raises(ValueError, match="chunk_bytes=0"):
        fused("forward", operands(), chunk_bytes=0)


def test_the_head_takes_its_gradient_without_a_copy():
    given = operands(torch.float32)
    loss = fused("reverse", given, token_weights=weights(dtype=torch.float32))
    formed = loss.grad_fn.ready[1].data_ptr()
    loss.backward()
    assert given["student_head"].grad.data_ptr() == formed


@every_kind
def test_a_kind_without_a_kernel_is_right_all_the_same(name, monkeypatch):
    given = operands()
    quick = fused(name, given, token_weights=weights())
    gradients = student_gradients(quick, given)
    monkeypatch.delitem(tiles.TILE_KINDS, FUSED[name][0])
    patient = fused(name, given, token_weights=weights())
    torch.testing.assert_close(patient, quick)
    torch.testing.assert_close(student_gradients(patient, given), gradients)
