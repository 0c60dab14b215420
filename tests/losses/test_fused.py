import pytest
import torch

from fractionate.losses import (
    linear_divergence,
    loss_denominator,
    reduce_loss,
    token_weights,
)
from fractionate.losses.bounds import (
    forward_gradient_norm,
    log_ratio_range,
    reverse_gradient_norm,
)
from fractionate.losses.divergences import cross_entropy, entropy, forward_kl, reverse_kl
from losses.heads import (
    HS,
    N,
    V,
    fused,
    operands,
    student_gradients,
    weights,
    whole_laws,
)
from losses.laws import DIVERGENCES, FUSED, normal

every_kind = pytest.mark.parametrize("name", list(FUSED))
both_forms = pytest.mark.parametrize("weighted", [False, True])


@every_kind
@both_forms
@pytest.mark.parametrize("chunk_size", [1, 2, 7, N - 1, N, N + 1, None])
def test_equals_the_whole_logits_at_every_chunk_size(name, weighted, chunk_size):
    given, per_token = operands(), weights()
    whole = DIVERGENCES[name](**whole_laws(given))
    if weighted:
        whole = (whole * per_token).sum()
        got = fused(name, given, token_weights=per_token, chunk_size=chunk_size)
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
    per_token = weights()
    (got,) = torch.autograd.grad(fused("reverse", given, token_weights=per_token), head)
    given["student_hidden"] = head[ids].tanh()
    whole = (DIVERGENCES["reverse"](**whole_laws(given)) * per_token).sum()
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


@every_kind
@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "constant", "sequence_sum"])
def test_micro_batches_add_up_to_the_step(name, how):
    mask = torch.arange(6) < torch.tensor([[6], [0], [3], [1], [4]])
    options = {"how": how, "max_length": 6}
    denominator = loss_denominator(mask, **options)
    rows = torch.zeros(mask.shape, dtype=torch.long)
    rows[mask] = torch.arange(int(mask.sum()))

    def loss_of(batch):
        given = operands(n=int(mask.sum()))
        kept = rows[batch][mask[batch]]
        part = {key: value[kept] if "hidden" in key else value for key, value in given.items()}
        per_token = token_weights(
            mask[batch], denominator=denominator, dtype=torch.float64, **options
        )
        loss = fused(name, part, token_weights=per_token[mask[batch]])
        return loss, torch.autograd.grad(loss, given["student_head"])[0]

    whole = loss_of(slice(None))
    parts = [loss_of(batch) for batch in (slice(1), slice(1, 2), slice(2, 4), slice(4, 5))]
    for got, expected in zip(map(sum, zip(*parts, strict=True)), whole, strict=True):
        torch.testing.assert_close(got, expected)
    per_token = torch.zeros(mask.shape, dtype=torch.float64)
    per_token[mask] = fused(name, operands(n=int(mask.sum()))).detach()
    torch.testing.assert_close(whole[0].detach(), reduce_loss(per_token, mask, **options))
