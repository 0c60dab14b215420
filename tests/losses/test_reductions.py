import itertools

import pytest
import torch

from cases import BUGS, EXAMPLES
from fractionate.losses import loss_denominator, reduce_loss, token_weights
from fractionate.losses.reductions import REDUCTIONS
from losses.laws import normal, numbers

every_reduction = pytest.mark.parametrize("how", REDUCTIONS)
LIMIT = 5


def ragged(rows):
    """(per_token, mask) of rows of unequal lengths, NaN under the mask."""
    width = max(map(len, rows))
    values = numbers([[*row, *[float("nan")] * (width - len(row))] for row in rows])
    return values, ~values.isnan()


B4_ROWS = BUGS["B4"]["input"]["per_token_by_sequence"]


@every_reduction
def test_b4_worked_values_of_the_whole_step(how):
    values, mask = ragged(B4_ROWS)
    got = reduce_loss(values, mask, how=how, max_length=LIMIT)
    assert float(got) == pytest.approx(BUGS["B4"]["expect"][how], abs=1e-9)


def partitions(rows):
    """All ways to cut the rows into consecutive micro-batches, in two orders."""
    for order in (rows, rows[::-1]):
        for cuts in itertools.product([False, True], repeat=len(order) - 1):
            bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(order)]
            yield [order[a:b] for a, b in itertools.pairwise(bounds)]


@every_reduction
def test_b4_any_split_into_micro_batches_gives_the_same_loss_and_gradient(how):
    rows = [*B4_ROWS, [0.7, 0.1], []]
    parameter = torch.ones((), dtype=torch.float64, requires_grad=True)
    results = []
    for batches in partitions(rows):
        pairs = [ragged(batch) for batch in batches if any(batch)]
        denominator = sum(loss_denominator(m, how=how, max_length=LIMIT) for _, m in pairs)
        parts = [
            reduce_loss(
                v.nan_to_num() * parameter**2, m, how=how, max_length=LIMIT, denominator=denominator
            )
            for v, m in pairs
        ]
        loss = torch.stack(parts).sum()
        (gradient,) = torch.autograd.grad(loss, parameter)
        results.append([float(loss.detach()), float(gradient)])
    assert len(results) == 32
    assert results[0][0] > 0
    for result in results:
        assert result == pytest.approx(results[0], abs=1e-12)


def test_b5_denominators_come_from_the_tokens_of_the_rollout():
    case = BUGS["B5"]["input"]
    masks = [torch.ones(1, n, dtype=torch.bool) for n in case["rollout_tokens_by_micro_batch"]]
    denominator = sum(loss_denominator(mask, how="token_mean") for mask in masks)
    parts = [
        reduce_loss(
            torch.full(mask.shape, case["loss_of_each_token"]).double(),
            mask,
            how="token_mean",
            denominator=denominator,
        )
        for mask in masks
    ]
    assert float(sum(parts)) == pytest.approx(BUGS["B5"]["expect"]["token_mean"], abs=1e-9)


def test_b13_an_empty_row_leaves_numerator_and_denominator():
    case = BUGS["B13"]
    values = numbers(case["input"]["per_token"])
    mask = torch.tensor(case["input"]["masks"]["empty row"]).bool()
    for how, expected in case["expect"]["empty row"].items():
        assert float(reduce_loss(values, mask, how=how)) == pytest.approx(expected, abs=1e-9)


@every_reduction
def test_b13_an_empty_batch_is_zero_with_zero_gradients(how):
    values = numbers(BUGS["B13"]["input"]["per_token"]).requires_grad_()
    mask = torch.zeros(2, 2, dtype=torch.bool)
    loss = reduce_loss(values, mask, how=how, max_length=LIMIT)
    assert float(loss.detach()) == BUGS["B13"]["expect"]["empty batch"][how]
    (gradient,) = torch.autograd.grad(loss, values)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@every_reduction
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_batch_without_positions_is_zero(how, shape):
    loss = reduce_loss(torch.zeros(shape), torch.ones(shape).bool(), how=how, max_length=LIMIT)
    assert float(loss) == 0


@every_reduction
def test_nan_under_the_mask_stays_out_of_value_and_gradient(how):
    values, mask = ragged(B4_ROWS)
    leaf = values.clone().requires_grad_()
    loss = reduce_loss(leaf, mask, how=how, max_length=LIMIT)
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert bool(loss.isfinite())
    assert bool((gradient[~mask] == 0).all())
    assert bool((gradient[mask] > 0).all())


@every_reduction
def test_masking_is_removing(how):
    values, mask = normal(4, 6).abs(), torch.ones(4, 6, dtype=torch.bool)
    mask[:, 4:] = False
    kept = reduce_loss(values[:, :4], mask[:, :4], how=how, max_length=LIMIT)
    torch.testing.assert_close(reduce_loss(values, mask, how=how, max_length=LIMIT), kept)


@every_reduction
def test_token_weights_sum_to_the_reduction(how):
    values, mask = normal(5, 7), normal(5, 7, seed=1) > 0
    mask[2] = False
    denominator = loss_denominator(mask, how=how, max_length=9)
    weights = token_weights(
        mask, how=how, denominator=denominator, max_length=9, dtype=torch.float64
    )
    assert bool((weights[~mask] == 0).all())
    expected = reduce_loss(values, mask, how=how, max_length=9)
    torch.testing.assert_close((weights * values).sum(), expected)


@pytest.mark.parametrize(
    ("how", "key"), [("sequence_mean", "tokw_seq"), ("token_mean", "tokw_tok")]
)
def test_worked_token_weights(how, key):
    mask = torch.arange(6) < torch.tensor([[2], [6]])
    weights = token_weights(mask, how=how, denominator=loss_denominator(mask, how=how))
    expected = torch.as_tensor(EXAMPLES[key]).expand(2)
    for row in (0, 1):
        torch.testing.assert_close(weights[row][mask[row]].unique().squeeze(), expected[row])


def test_half_precision_losses_are_summed_in_float32():
    values = torch.full((1, 4096), 0.1).bfloat16()
    loss = reduce_loss(values, torch.ones(1, 4096).bool(), how="token_mean")
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(values[0, 0]), rel=1e-6)


@pytest.mark.parametrize("max_length", [None, 0, -1])
def test_constant_needs_a_limit(max_length):
    mask = torch.ones(1, 2, dtype=torch.bool)
    for call in (
        lambda: loss_denominator(mask, how="constant", max_length=max_length),
        lambda: reduce_loss(mask.float(), mask, how="constant", max_length=max_length),
        lambda: reduce_loss(
            mask.float(), mask, how="constant", max_length=max_length, denominator=4.0
        ),
        lambda: token_weights(mask, how="constant", max_length=max_length, denominator=4.0),
    ):
        with pytest.raises(ValueError, match="max_length"):
            call()


def test_unknown_reductions_are_refused():
    mask = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="how='mean' is unknown"):
        reduce_loss(mask.float(), mask, how="mean")
    with pytest.raises(ValueError, match="how='mean' is unknown"):
        loss_denominator(mask, how="mean")


@every_reduction
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_a_mask_of_zeros_and_ones_may_be_of_any_dtype(how, dtype):
    values, mask = ragged(B4_ROWS)
    expected = reduce_loss(values, mask, how=how, max_length=LIMIT)
    got = reduce_loss(values, mask.to(dtype), how=how, max_length=LIMIT)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("odd", [2.0, -1.0, 0.5, float("nan")])
def test_other_numbers_in_a_mask_are_refused(odd):
    mask = torch.tensor([[1.0, odd]])
    for call in (
        lambda: reduce_loss(torch.ones(1, 2), mask, how="token_mean"),
        lambda: token_weights(mask, how="token_mean", denominator=2),
        lambda: loss_denominator(mask, how="token_mean"),
    ):
        with pytest.raises(ValueError, match=r"mask holds .* at position \(0, 1\)"):
            call()


def test_a_mask_is_not_broadcast():
    with pytest.raises(ValueError, match=r"mask \(1, 2\) and per_token \(3, 2\)"):
        reduce_loss(torch.ones(3, 2), torch.ones(1, 2).bool(), how="token_mean")


@every_reduction
@pytest.mark.parametrize("denominator", [-1.0, float("nan"), float("inf"), 0, torch.tensor(0.0)])
def test_a_denominator_that_cannot_be_is_refused(how, denominator):
    mask = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="denominator"):
        reduce_loss(mask.float(), mask, how=how, max_length=LIMIT, denominator=denominator)
    with pytest.raises(ValueError, match="denominator"):
        token_weights(mask, how=how, max_length=LIMIT, denominator=denominator)


@every_reduction
def test_a_denominator_of_zero_is_right_for_an_empty_step(how):
    weights = token_weights(torch.zeros(2, 2), how=how, max_length=LIMIT, denominator=0)
    assert weights.tolist() == [[0, 0], [0, 0]]
