import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fractionate.losses import linear_divergence, log_probs
from fractionate.losses.bounds import (
    forward_gradient_norm,
    log_ratio_range,
    reverse_gradient_norm,
)
from fractionate.losses.divergences import cross_entropy, entropy, forward_kl, reverse_kl
from losses.laws import DIVERGENCES, FUSED, normal

N, V, HS, HT = 23, 19, 5, 7
TEMPERATURES = {"student_temperature": 1.3, "teacher_temperature": 0.5}
every_kind = pytest.mark.parametrize("name", list(FUSED))
both_forms = pytest.mark.parametrize("weighted", [False, True])


def operands(dtype=torch.float64, n=N, v=V, extra=0):
    return {
        "student_hidden": normal(n, HS, seed=1).to(dtype).requires_grad_(),
        "student_head": normal(v, HS, seed=2).to(dtype).requires_grad_(),
        "teacher_hidden": normal(n, HT, seed=3).to(dtype),
        "teacher_head": normal(v + extra, HT, seed=4).to(dtype),
    }


def weights(n=N, dtype=torch.float64):
    return normal(n, seed=5).abs().to(dtype)


def whole_laws(given, vocab_size=None):
    """Both laws from the whole logits, in the upcast dtype of the operands."""
    wide = {
        key: value.to(torch.promote_types(value.dtype, torch.float32))
        for key, value in given.items()
    }
    return {
        f"{who}_log_probs": log_probs(
            wide[f"{who}_hidden"] @ wide[f"{who}_head"].T,
            temperature=TEMPERATURES[f"{who}_temperature"],
            vocab_size=vocab_size,
        )
        for who in ("teacher", "student")
    }


def student_gradients(loss, given, **kwargs):
    return torch.autograd.grad(loss, (given["student_hidden"], given["student_head"]), **kwargs)


def fused(name, given, **kwargs):
    kind, parameter = FUSED[name]
    return linear_divergence(**given, kind=kind, parameter=parameter, **TEMPERATURES, **kwargs)


@every_kind
@both_forms
@pytest.mark.parametrize("chunk_size", [1, 2, 7, N - 1, N, N + 1, None])
def test_equals_the_whole_logits_at_every_chunk_size(name, weighted, chunk_size):
    given, token_weights = operands(), weights()
    whole = DIVERGENCES[name](**whole_laws(given))
    if weighted:
        whole = (whole * token_weights).sum()
        got = fused(name, given, token_weights=token_weights, chunk_size=chunk_size)
        upstream = torch.tensor(0.7, dtype=torch.float64)
    else:
        got = fused(name, given, chunk_size=chunk_size)
        upstream = normal(N, seed=6)
    torch.testing.assert_close(got, whole, atol=1e-12, rtol=1e-10)
    for ours, theirs in zip(
        student_gradients(got, given, grad_outputs=upstream),
        student_gradients(whole, given, grad_outputs=upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@every_kind
@both_forms
def test_gradient_is_the_finite_difference(name, weighted):
    given = operands(n=3, v=5)
    fixed = {key: value for key, value in given.items() if key.startswith("teacher")}

    def value(student_hidden, student_head):
        extra = {"token_weights": weights(3)} if weighted else {}
        own = {"student_hidden": student_hidden, "student_head": student_head}
        return fused(name, own | fixed, chunk_size=2, **extra)

    assert torch.autograd.gradcheck(value, (given["student_hidden"], given["student_head"]))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_operands_give_the_exact_divergence_of_their_values(name, dtype):
    given = operands(dtype)
    exact = {key: value.detach().double().requires_grad_() for key, value in given.items()}
    got = fused(name, given, token_weights=weights(dtype=torch.float32))
    whole = (DIVERGENCES[name](**whole_laws(exact)) * weights()).sum()
    assert got.dtype == torch.float32
    assert float(got.detach()) == pytest.approx(float(whole.detach()), rel=3e-6)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for ours, theirs in zip(
        student_gradients(got, given), student_gradients(whole, exact), strict=True
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


def test_mixed_precisions_meet_in_the_wider_one():
    given = operands(torch.float32)
    half_teacher = given | {
        key: given[key].bfloat16() for key in ("teacher_hidden", "teacher_head")
    }
    got = fused("forward", half_teacher)
    torch.testing.assert_close(got, DIVERGENCES["forward"](**whole_laws(half_teacher)))
    assert (
        fused("forward", given | {"teacher_head": given["teacher_head"].double()}).dtype
        == torch.float64
    )


@every_kind
def test_autocast_around_the_call_changes_nothing(name):
    given = operands(torch.float32)
    plain = fused(name, given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fused(name, given), plain)


@every_kind
@both_forms
def test_the_teacher_gets_no_gradient(name, weighted):
    given = operands()
    given["teacher_hidden"].requires_grad_()
    given["teacher_head"].requires_grad_()
    extra = {"token_weights": weights()} if weighted else {}
    fused(name, given, **extra).sum().backward()
    assert given["teacher_hidden"].grad is None
    assert given["teacher_head"].grad is None
    assert given["student_head"].grad is not None


@both_forms
@pytest.mark.parametrize("frozen", ["student_hidden", "student_head"])
def test_a_frozen_part_costs_no_gradient(frozen, weighted):
    given = operands()
    trained = ({"student_hidden", "student_head"} - {frozen}).pop()
    given[frozen].requires_grad_(False)
    extra = {"token_weights": weights()} if weighted else {}
    whole = DIVERGENCES["reverse"](**whole_laws(given)) * (weights() if weighted else 1)
    (expected,) = torch.autograd.grad(whole.sum(), given[trained])
    fused("reverse", given, **extra).sum().backward()
    torch.testing.assert_close(given[trained].grad, expected)
    assert given[frozen].grad is None


@both_forms
def test_a_second_backward_pass_gives_the_same_gradients(weighted):
    given = operands()
    extra = {"token_weights": weights()} if weighted else {}
    loss = fused("jsd_0.5", given, **extra).sum()
    first = student_gradients(loss, given, retain_graph=True)
    for ours, theirs in zip(student_gradients(2 * loss, given), first, strict=True):
        torch.testing.assert_close(ours, 2 * theirs)


def test_a_head_tied_to_the_embedding_gathers_both_gradients():
    ids = torch.arange(N) % V
    head = normal(V, HS, seed=2).requires_grad_()
    given = operands() | {"student_head": head, "student_hidden": head[ids].tanh()}
    token_weights = weights()
    (got,) = torch.autograd.grad(fused("reverse", given, token_weights=token_weights), head)
    given["student_hidden"] = head[ids].tanh()
    whole = (DIVERGENCES["reverse"](**whole_laws(given)) * token_weights).sum()
    torch.testing.assert_close(got, torch.autograd.grad(whole, head)[0])


def test_no_gradient_mode_gives_values():
    given = operands()
    with torch.no_grad():
        assert not fused("forward", given, token_weights=weights()).requires_grad


@every_kind
@both_forms
def test_equal_laws_give_zero(name, weighted):
    hidden, head = normal(N, HS).float(), normal(V, HS, seed=1).float()
    kind, parameter = FUSED[name]
    value = linear_divergence(
        student_hidden=hidden,
        student_head=head,
        teacher_hidden=hidden,
        teacher_head=head,
        kind=kind,
        parameter=parameter,
        token_weights=torch.ones(N) if weighted else None,
    )
    assert bool((value == 0).all())


@every_kind
def test_never_negative_for_nearly_equal_laws(name):
    given = operands(torch.float32, n=200, v=300)
    near = given["student_head"].detach() * (1 + 1e-5)
    given |= {"teacher_hidden": given["student_hidden"].detach(), "teacher_head": near}
    kind, parameter = FUSED[name]
    assert bool((linear_divergence(**given, kind=kind, parameter=parameter) >= 0).all())


@every_kind
@pytest.mark.parametrize("form", ["values", "weighted"])
def test_no_positions(name, form):
    given = operands(n=0)
    extra = {"token_weights": weights(0)} if form == "weighted" else {}
    value = fused(name, given, **extra)
    assert value.shape == (() if form == "weighted" else (0,))
    hidden, head = student_gradients(value.sum(), given)
    assert hidden.shape == (0, HS)
    assert bool((head == 0).all())


@every_kind
def test_vocab_size_slices_both_heads(name):
    given = operands(extra=4)
    got = fused(name, given, vocab_size=V - 3, token_weights=weights())
    whole = (DIVERGENCES[name](**whole_laws(given, vocab_size=V - 3)) * weights()).sum()
    torch.testing.assert_close(got, whole)
    for ours, theirs in zip(
        student_gradients(got, given), student_gradients(whole, given), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert bool(
        (student_gradients(fused(name, given, vocab_size=V - 3).sum(), given)[1][-3:] == 0).all()
    )


def test_a_longer_teacher_head_needs_vocab_size():
    with pytest.raises(
        ValueError, match=r"student_head has 19 rows and teacher_head 23.*vocab_size"
    ):
        fused("forward", operands(extra=4))
    assert fused("forward", operands(extra=4), vocab_size=V).shape == (N,)


@pytest.mark.parametrize("vocab_size", [0, V + 1])
def test_vocab_size_must_fit_both_heads(vocab_size):
    with pytest.raises(ValueError, match="vocab_size"):
        fused("forward", operands(extra=4), vocab_size=vocab_size)


# Statistics.


@every_kind
@both_forms
def test_statistics_equal_their_definitions(name, weighted):
    given = operands()
    extra = {"token_weights": weights()} if weighted else {}
    value, stats = fused(name, given, return_stats=True, **extra)
    torch.testing.assert_close(value, fused(name, given, **extra))
    laws = whole_laws(given)
    expected = {
        "forward_kl": forward_kl(**laws),
        "reverse_kl": reverse_kl(**laws),
        "teacher_entropy": entropy(log_probs=laws["teacher_log_probs"]),
        "student_entropy": entropy(log_probs=laws["student_log_probs"]),
        "cross_entropy": cross_entropy(**laws),
        "forward_grad_norm": forward_gradient_norm(**laws),
        "reverse_grad_norm": reverse_gradient_norm(**laws),
        "log_ratio_range": log_ratio_range(**laws),
    }
    for field, theirs in expected.items():
        ours = getattr(stats, field)
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-12, rtol=1e-9)


def test_statistics_leave_the_gradient_alone():
    given = operands()
    plain = student_gradients(fused("jsd_0.5", given, token_weights=weights()), given)
    value, _ = fused("jsd_0.5", given, token_weights=weights(), return_stats=True)
    for ours, theirs in zip(student_gradients(value, given), plain, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_statistics_of_no_positions_are_empty():
    _, stats = fused("reverse", operands(n=0), return_stats=True)
    assert stats.forward_kl.shape == (0,)


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


def test_chunks_keep_to_the_budget_by_themselves():
    from fractionate.losses import fused as module

    n, v = 4096, 4096
    given = operands(torch.float32, n=n, v=v)
    with torch.no_grad(), LargestTensor() as seen:
        fused("forward", given)
    assert seen.elements * 4 <= module.CHUNK_BYTES < n * v * 4


def test_the_head_takes_its_gradient_without_a_copy():
    given = operands(torch.float32)
    loss = fused("reverse", given, token_weights=weights(dtype=torch.float32))
    formed = loss.grad_fn.ready[1].data_ptr()
    loss.backward()
    assert given["student_head"].grad.data_ptr() == formed
