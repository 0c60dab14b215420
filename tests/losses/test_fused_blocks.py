"""Blocks of the vocabulary, and products in bf16, in the fused loss."""

import pytest
import torch

from fractionate.losses import passes
from losses.heads import V, fused, operands, student_gradients, weights, whole_laws
from losses.laws import DIVERGENCES, FUSED

every_kind = pytest.mark.parametrize("name", list(FUSED))
both_forms = pytest.mark.parametrize("weighted", [False, True])


@pytest.fixture
def small_blocks(monkeypatch):
    """Lets a few tokens make a block, so that a tiny vocabulary has several."""

    def use(width):
        monkeypatch.setattr(passes, "NARROW", 2)
        monkeypatch.setattr(passes, "TILE_ELEMENTS", 7 * width)
        return {"chunk_size": 7}

    return use


@every_kind
@both_forms
@pytest.mark.parametrize("width", [1, 4, V - 1])
def test_blocks_of_the_vocabulary_change_nothing(name, weighted, width, small_blocks):
    given = operands()
    extra = {"token_weights": weights()} if weighted else {}
    whole = DIVERGENCES[name](**whole_laws(given)) * (weights() if weighted else 1)
    got = fused(name, given, **extra, **small_blocks(width))
    torch.testing.assert_close(got.sum(), whole.sum(), atol=1e-12, rtol=1e-10)
    for ours, theirs in zip(
        student_gradients(got.sum(), given), student_gradients(whole.sum(), given), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@every_kind
@both_forms
def test_statistics_do_not_depend_on_the_blocks(name, weighted, small_blocks):
    given = operands()
    extra = {"token_weights": weights()} if weighted else {}
    _, whole = fused(name, given, return_stats=True, **extra)
    value, parts = fused(name, given, return_stats=True, **extra, **small_blocks(4))
    for field, expected in vars(whole).items():
        torch.testing.assert_close(getattr(parts, field), expected, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(value, fused(name, given, **extra))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_bf16_stay_within_their_rounding(name, dtype):
    n, v = 200, 1500
    given = operands(dtype, n=n, v=v)
    exact = {key: value.detach().double().requires_grad_() for key, value in given.items()}
    per_token = torch.full((n,), 1 / n, dtype=torch.float64)
    whole = (DIVERGENCES[name](**whole_laws(exact)) * per_token).sum()
    got = fused(name, given, token_weights=per_token.float(), gemm_dtype=torch.bfloat16)
    assert got.dtype == torch.float32
    assert float(got.detach()) == pytest.approx(float(whole.detach()), rel=1e-2)
    for ours, theirs in zip(
        student_gradients(got, given), student_gradients(whole, exact), strict=True
    ):
        assert ours.dtype == dtype
        error = (ours.double() - theirs).norm() / theirs.norm()
        # Rounded logits turn the hard gate of a few positions over.
        assert error < (1e-1 if name.startswith("entropy_aware") else 2e-2)


def test_products_are_exact_unless_asked_otherwise():
    given = operands(torch.bfloat16)
    exact = fused("forward", given)
    torch.testing.assert_close(exact, DIVERGENCES["forward"](**whole_laws(given)))
    assert not torch.equal(fused("forward", given, gemm_dtype=torch.bfloat16), exact)


@pytest.mark.parametrize("gemm_dtype", [torch.float16, torch.float64, torch.int8])
def test_other_dtypes_of_the_products_are_refused(gemm_dtype):
    with pytest.raises(ValueError, match="gemm_dtype"):
        fused("forward", operands(), gemm_dtype=gemm_dtype)
