import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import BUGS, EXAMPLES
from fractionate.losses import (
    early_stop_mask,
    iw_opd_weights,
    reward_to_go,
    skip_mask,
    stale_rollout_weight,
    window_mask,
)
from losses.laws import numbers

TEACHER, STUDENT = numbers([[-1.0, -2, -0.5, -4]]), numbers([[-0.8, -0.5, -1.7, -1]])


def prefix(*lengths, width=None):
    width = width or max(lengths)
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def ones(mask):
    return [[int(value) for value in row] for row in mask.tolist()]


def test_worked_iw_opd():
    advantages = TEACHER - STUDENT
    torch.testing.assert_close(advantages[0], numbers(EXAMPLES["iw_A"]))
    weights = iw_opd_weights(advantages, prefix(4), gamma=0.5)
    torch.testing.assert_close(weights[0], numbers(EXAMPLES["iw_w"]), atol=1e-9, rtol=0)
    weighted = weights * advantages
    torch.testing.assert_close(weighted[0], numbers(EXAMPLES["iw_wA"]), atol=1e-9, rtol=0)
    loss = -(weighted * STUDENT).sum() / 4
    assert float(loss) == pytest.approx(EXAMPLES["iw_loss"], abs=1e-9)
    plain = iw_opd_weights(advantages, prefix(4), gamma=0) * advantages
    assert float(-(plain * STUDENT).sum() / 4) == pytest.approx(EXAMPLES["opd_loss"], abs=1e-9)


def test_worked_share_of_the_advantage_that_is_spent():
    weights = iw_opd_weights(TEACHER - STUDENT, prefix(4), gamma=1)
    expected = numbers(EXAMPLES["iw_ratio_share"])
    torch.testing.assert_close(2 - weights[0], expected, atol=1e-9, rtol=0)


def test_signed_sums_would_cancel():
    advantages = numbers(EXAMPLES["iw_A"])
    spent = (advantages.cumsum(0) - advantages) / advantages.sum()
    torch.testing.assert_close(1 + 0.5 * (1 - spent), numbers(EXAMPLES["iw_signed"]))
    assert EXAMPLES["iw_signed"][3] > EXAMPLES["iw_signed"][2]


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=30),
    st.floats(0, 3),
    st.integers(0, 4),
)
def test_iw_opd_weights_fall_from_one_plus_gamma_and_never_below_one(values, gamma, padding):
    advantages = numbers([values + [float("nan")] * padding])
    mask = prefix(len(values), width=len(values) + padding)
    weights = iw_opd_weights(advantages, mask, gamma=gamma)[0]
    valid = weights[: len(values)]
    assert float(valid[0]) == pytest.approx(1 + gamma)
    assert bool((valid >= 1 - 1e-12).all())
    assert bool((valid.diff() <= 0).all())
    assert bool((weights[len(values) :] == 0).all())


def test_iw_opd_ignores_what_is_masked_in_the_middle():
    mask = torch.tensor([[True, False, True]])
    weights = iw_opd_weights(numbers([[1.0, float("nan"), 3.0]]), mask)
    torch.testing.assert_close(weights, numbers([[1.5, 0.0, 1.375]]))


def test_iw_opd_without_any_advantage_is_uniform():
    weights = iw_opd_weights(torch.zeros(2, 3), prefix(3, 2))
    assert weights.tolist() == [[1.5, 1.5, 1.5], [1.5, 1.5, 0.0]]


def test_iw_opd_at_constant_advantages_is_a_position_schedule():
    weights = iw_opd_weights(numbers([[-2.0] * 4]), prefix(4), gamma=1)
    torch.testing.assert_close(weights[0], 2 - torch.arange(4).double() / 4)


def test_iw_opd_weights_are_detached_and_upcast():
    advantages = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights = iw_opd_weights(advantages.requires_grad_(), prefix(3, 3))
    assert not weights.requires_grad
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_iw_opd_of_nothing(shape):
    assert iw_opd_weights(torch.zeros(shape), torch.ones(shape).bool()).shape == shape


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_missing_log_probability_is_refused(value):
    with pytest.raises(ValueError, match=r"advantages is .* at position \(0, 1\)"):
        iw_opd_weights(numbers([[1.0, value]]), prefix(2))


@pytest.mark.parametrize("gamma", [-0.1, float("nan"), float("inf")])
def test_gamma_must_not_be_negative(gamma):
    with pytest.raises(ValueError, match="gamma"):
        iw_opd_weights(torch.ones(1, 2), prefix(2), gamma=gamma)


MASKED = {
    "iw_opd_weights": lambda mask, values: iw_opd_weights(values, mask),
    "reward_to_go": lambda mask, values: reward_to_go(values, mask),
    "stale_rollout_weight": lambda mask, values: stale_rollout_weight(
        log_prob=values, log_prob_behaviour=values * 2, mask=mask
    ),
    "early_stop_mask": lambda mask, _: early_stop_mask(mask, 2),
    "skip_mask": lambda mask, _: skip_mask(mask, 1),
    "window_mask": lambda mask, _: window_mask(mask, last=0.5),
}
every_masked = pytest.mark.parametrize("call", list(MASKED.values()), ids=list(MASKED))


@every_masked
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_a_mask_of_zeros_and_ones_may_be_of_any_dtype(call, dtype):
    mask, values = prefix(4, 2), numbers([[-1.0, -2, -0.5, -4]] * 2)
    got, expected = call(mask.to(dtype), values), call(mask, values)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@every_masked
def test_other_numbers_in_a_mask_are_refused(call):
    with pytest.raises(ValueError, match=r"mask holds 2 at position \(0, 1\)"):
        call(torch.tensor([[1, 2]]), numbers([[-1.0, -2]]))


@pytest.mark.parametrize("name", ["iw_opd_weights", "reward_to_go", "stale_rollout_weight"])
def test_a_mask_is_not_broadcast(name):
    with pytest.raises(ValueError, match=r"mask \(1, 2\) and \w+ \(3, 2\) must have one shape"):
        MASKED[name](prefix(2), torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("lengths", "n", "expected"),
    [((7,), 3, [[1, 1, 1, 0, 0, 0, 0]]), ((2,), 3, [[1, 1]]), ((0, 2), 1, [[0, 0], [1, 0]])],
)
def test_early_stop_keeps_the_first_tokens(lengths, n, expected):
    assert ones(early_stop_mask(prefix(*lengths), n)) == expected


def test_skip_drops_the_first_tokens():
    assert ones(skip_mask(prefix(4, 2), 3)) == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert ones(skip_mask(prefix(2), 0)) == [[1, 1]]


def test_masks_count_valid_tokens_not_positions():
    mask = torch.tensor([[False, True, False, True, True]])
    assert ones(early_stop_mask(mask, 1)) == [[0, 1, 0, 0, 0]]
    assert ones(skip_mask(mask, 1)) == [[0, 0, 0, 1, 1]]
    assert ones(window_mask(mask, last=1 / 3)) == [[0, 0, 0, 0, 1]]


def test_window_takes_a_share_from_either_end():
    mask = prefix(10, 4)
    assert window_mask(mask, first=0.3).sum(-1).tolist() == [3, 2]
    assert ones(window_mask(mask, first=0.3))[0] == [1] * 3 + [0] * 7
    assert ones(window_mask(mask, last=0.3))[1] == [0, 0, 1, 1] + [0] * 6
    assert torch.equal(window_mask(mask, first=1), mask)


def test_window_rounds_up_and_not_by_a_rounding_error():
    for length in range(1, 101):
        for tenths in range(1, 11):
            kept = int(window_mask(prefix(length), first=tenths / 10).sum())
            assert kept == -(-length * tenths // 10)


@pytest.mark.parametrize(
    "call",
    [
        lambda mask: early_stop_mask(mask, 0),
        lambda mask: skip_mask(mask, -1),
        window_mask,
        lambda mask: window_mask(mask, first=0.5, last=0.5),
        lambda mask: window_mask(mask, first=0),
        lambda mask: window_mask(mask, last=1.5),
    ],
)
def test_masks_refuse_nonsense(call):
    with pytest.raises(ValueError, match=r"must|exactly one"):
        call(prefix(3))


def test_worked_stale_rollout_weight():
    new, old = numbers([[-1.0, -0.5, -2]]), numbers([[-1.2, -1.5, -1]])
    torch.testing.assert_close((new - old).exp()[0], numbers(EXAMPLES["stale_ratio"]))
    weight = stale_rollout_weight(log_prob=new, log_prob_behaviour=old, mask=prefix(3))
    assert float(weight) == pytest.approx(EXAMPLES["stale_w"], abs=1e-9)
    assert float((new - old).sum().exp()) == pytest.approx(EXAMPLES["stale_seq"], abs=1e-9)


def test_stale_weight_is_one_without_lag_and_ignores_the_mask():
    log_prob = numbers([[-1.0, float("nan")], [float("nan"), float("nan")]]).requires_grad_()
    weight = stale_rollout_weight(
        log_prob=log_prob, log_prob_behaviour=log_prob.detach(), mask=prefix(1, 0, width=2)
    )
    assert weight.tolist() == [1.0, 0.0]
    assert not weight.requires_grad


def test_b26_returns_stop_at_the_mask():
    case = BUGS["B26"]
    rewards = numbers([case["input"]["rewards"]])
    mask = torch.tensor([case["input"]["mask"]]).bool()
    got = reward_to_go(rewards, mask, discount=case["input"]["discount"])
    torch.testing.assert_close(got[0], numbers(case["expect"]["reward_to_go"]))
    poisoned = torch.where(mask, rewards, float("nan"))
    assert torch.equal(reward_to_go(poisoned, mask), got)


def test_reward_to_go_discounts_by_position():
    got = reward_to_go(numbers([[1.0, 2, 4]]), prefix(3), discount=0.5)
    assert got.tolist() == [[3.0, 4.0, 4.0]]
    assert reward_to_go(torch.zeros(2, 0), torch.zeros(2, 0).bool()).shape == (2, 0)
