import math

import numpy as np
import pytest
import torch

from cases import EXAMPLES
from fractionate.metrics import (
    NullRun,
    largest_movable,
    rounding_null,
    simulated_unmoved,
    smallest_moving_update,
)

RUN = {"steps": 150, "warmup": 10}


@pytest.fixture
def weights(generator):
    return torch.randn(60_000, generator=generator) * 0.02


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("mob_")])
def test_largest_movable_matches_the_table(key):
    assert largest_movable(float(key.removeprefix("mob_"))) == EXAMPLES[key]


@pytest.mark.parametrize(
    "key", [key for key in EXAMPLES if key.startswith("eta_") and "in" not in key]
)
def test_smallest_moving_update_matches_the_table(key):
    stored, _, smallest, ratio = EXAMPLES[key]
    assert smallest_moving_update(float(key.removeprefix("eta_"))) == pytest.approx(
        smallest, rel=1e-9
    )
    assert smallest / stored == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("eta_in_")])
def test_inward_updates_may_be_smaller_at_powers_of_two(key):
    weight = float(key.removeprefix("eta_in_"))
    assert smallest_moving_update(weight, inward=True) == pytest.approx(EXAMPLES[key], rel=1e-9)


@pytest.mark.parametrize("weight", [0.0078125, 0.02, 0.05, 0.000999451, 1.0])
@pytest.mark.parametrize("inward", [False, True])
def test_smallest_moving_update_is_where_torch_starts_to_move(weight, inward):
    stored = torch.tensor(weight).bfloat16()
    smallest = smallest_moving_update(weight, inward=inward)
    sign = -1 if inward else 1
    moved = [
        (stored.float() + sign * torch.tensor(smallest * factor)).bfloat16() != stored
        for factor in (1 - 3e-5, 1 + 3e-5)
    ]
    assert [bool(value) for value in moved] == [False, True]


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("pred_")])
def test_analytic_census_of_a_normal_law(key, weights):
    null = rounding_null(
        weights, lr=float(key.removeprefix("pred_")), param_dtype="bfloat16", **RUN
    )
    error = 4 * math.sqrt(EXAMPLES[key] * (1 - EXAMPLES[key]) / len(weights)) + 5e-4
    assert null == pytest.approx(EXAMPLES[key], abs=error)


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("sim_bf16_")])
def test_simulated_bfloat16_levels(key, weights):
    run = NullRun(float(key.removeprefix("sim_bf16_")), **RUN, param_dtype="bfloat16")
    shares = simulated_unmoved(weights, run, thresholds=(1e-8, 1e-6, 1e-5, 0.0))
    assert shares == pytest.approx(EXAMPLES[key], abs=0.01)


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("sim_fp32_")])
def test_simulated_float32_levels(key, weights):
    run = NullRun(float(key.removeprefix("sim_fp32_")), **RUN, param_dtype="float32")
    shares = simulated_unmoved(weights, run, thresholds=(1e-8, 1e-6, 1e-5))
    cast = simulated_unmoved(weights, run, thresholds=(0.0,), stored_dtype="bfloat16")
    assert (*shares, *cast) == pytest.approx(EXAMPLES[key], abs=0.01)


def test_simulated_levels_over_spreads_and_signals(weights):
    shares = [
        rounding_null(weights * scale, lr=lr, param_dtype="bfloat16", simulate=True, snr=snr, **RUN)
        for lr in (1e-5, 5e-5)
        for scale in (1.0, 1.5)
        for snr in (0.0, 0.3, 1.0)
    ]
    ranges = [min(shares[:6]), max(shares[:6]), min(shares[6:]), max(shares[6:])]
    assert ranges == pytest.approx(EXAMPLES["sim_sens"], abs=0.01)


def test_float32_weights_all_move():
    null = rounding_null(torch.ones(8), lr=1e-5, param_dtype="float32", **RUN)
    assert null == 0.0


def test_the_second_moment_never_decays_in_bfloat16():
    moment = torch.ones((), dtype=torch.bfloat16)
    for _ in range(1000):
        moment *= 0.999
    assert float(moment) == EXAMPLES["v_after1000_bf16"]


@pytest.mark.parametrize("simulate", [False, True])
def test_no_step_moves_nothing(simulate, weights):
    null = rounding_null(
        weights, lr=1e-3, steps=0, warmup=0, param_dtype=torch.bfloat16, simulate=simulate
    )
    assert null == 1.0


def test_seed_decides_the_simulation(weights):
    def simulated(seed):
        return rounding_null(
            weights, lr=5e-5, param_dtype="bfloat16", simulate=True, seed=seed, **RUN
        )

    assert simulated(0) == simulated(0) != simulated(1)


def test_mapping_array_and_tensor_are_the_same_weights(weights):
    forms = (weights, weights.numpy(), {"a": weights[:100].view(10, 10), "b": weights[100:]})
    nulls = {
        rounding_null(form, lr=5e-5, param_dtype="bfloat16", simulate=True, **RUN) for form in forms
    }
    assert len(nulls) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"param_dtype": "int8"}, "param_dtype must be one of bfloat16, float32"),
        ({"lr": -1.0}, "lr must be a finite rate"),
        ({"weights": {}}, "weights is empty"),
        ({"weights": np.array([np.nan])}, "NaN"),
    ],
)
def test_refusals_name_the_argument(change, message, weights):
    arguments = {"weights": weights, "lr": 1e-5, "param_dtype": "bfloat16", **RUN, **change}
    with pytest.raises(ValueError, match=message):
        rounding_null(arguments.pop("weights"), **arguments)


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize(
    ("argument", "value"),
    [("steps", -1), ("warmup", -1), ("threshold", -1e-6), ("threshold", math.nan), ("snr", -0.1)],
)
def test_numbers_below_zero_are_refused_with_and_without_simulation(argument, value, simulate):
    arguments = {"lr": 1e-5, "param_dtype": "bfloat16", **RUN, argument: value}
    with pytest.raises(ValueError, match=f"{argument} must be a finite number >= 0"):
        rounding_null(torch.ones(4), simulate=simulate, **arguments)


@pytest.mark.parametrize("weight", [0.0, math.inf])
def test_a_weight_without_spacing_is_refused(weight):
    with pytest.raises(ValueError, match="finite and not 0"):
        smallest_moving_update(weight)
