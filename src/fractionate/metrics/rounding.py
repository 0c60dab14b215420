"""What rounding alone keeps unmoved: the null model of update sparsity.

A bfloat16 number has eight significant bits, so an update below half a unit in the last place is
lost, and Adam's normalised step is about as large as the learning rate. The share of weights that
never move is then mostly a census of |w| against the rate, without any model, divergence or
rollout. Claims about sparsity therefore compare arms within one rate, beside this null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fractionate.rng import derive_seed, stream

_SIGNIFICAND_BITS: Mapping[str, int] = {"bfloat16": 8, "float32": 24}
_DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}

SIMULATED_WEIGHTS = 32_768
"""Weights that a simulation looks at; the Monte-Carlo error of a share is then under 0.003."""

Weights = Tensor | np.ndarray | Mapping[str, Tensor]


@dataclass(frozen=True)
class NullRun:
    """The optimizer run that the null model imitates.

    Attributes:
        lr: Rate after warm-up.
        steps: Optimizer steps.
        warmup: Steps of linear warm-up; step 0 has rate 0, as in the Hugging Face schedule.
        param_dtype: In which weights are updated and moments kept, "bfloat16" or "float32".
        snr: Spread over weights of the mean gradient, in units of the gradient's noise.
        seed: Of the gradients and of the subsample.
    """

    lr: float
    steps: int
    warmup: int
    param_dtype: str
    snr: float = 0.3
    seed: int = 0


def largest_movable(lr: float, *, param_dtype: str = "bfloat16") -> float:
    """The magnitude from which on a step of size `lr` cannot move a weight.

    w_max = 2^(floor(log2 lr) + p + 1) with p significant bits (8 in bfloat16, 24 in float32), as
    long as Adam's normalised step stays at or below 1. Infinitely small at rate 0.

    Raises:
        ValueError: A negative or infinite rate, or a dtype without an entry.
    """
    bits = _SIGNIFICAND_BITS[_known(param_dtype)]
    if not (math.isfinite(lr) and lr >= 0):
        raise ValueError(f"lr must be a finite rate >= 0, got {lr!r}")
    return math.ldexp(1.0, math.frexp(lr)[1] - 1 + bits + 1) if lr else 0.0


def smallest_moving_update(weight: float, *, inward: bool = False) -> float:
    """The smallest update that changes a bfloat16 weight, outward (away from 0) or inward.

    Half a unit in the last place, less or more half a unit of float32: kernels add in float32 and
    then round, both to nearest with ties to even. At a power of two the inward spacing is half the
    outward one.

    Args:
        weight: A number other than 0; it is rounded to bfloat16 first.
        inward: Towards 0 instead of away from it.

    Raises:
        ValueError: The weight is 0, infinite or not a number.
    """
    stored = abs(float(torch.tensor(weight, dtype=torch.float64).to(torch.bfloat16)))
    if not (math.isfinite(stored) and stored > 0):
        raise ValueError(f"weight must be finite and not 0 in bfloat16, got {weight!r}")
    mantissa, exponent = math.frexp(stored)
    exponent -= 1
    if inward and mantissa == 0.5:
        exponent -= 1
    half = math.ldexp(1.0, exponent - _SIGNIFICAND_BITS["bfloat16"])
    odd = int(math.ldexp(mantissa, _SIGNIFICAND_BITS["bfloat16"])) % 2 == 1
    slack = math.ldexp(1.0, exponent - _SIGNIFICAND_BITS["float32"])
    return half - slack if odd else half + slack


def rounding_null(  # noqa: PLR0913 - the signature is a contract
    weights: Weights,
    *,
    lr: float,
    steps: int,
    warmup: int,
    param_dtype: str,
    threshold: float = 1e-6,
    simulate: bool = False,
    snr: float = 0.3,
    seed: int = 0,
) -> float:
    """Share of weights that rounding alone keeps unmoved under Adam.

    Without `simulate` it is the analytic census: the share with |w| >= w_max(lr), which no step of
    normalised size up to 1 can move, whatever the threshold. With it, AdamW runs on (a subsample
    of) these weights with gradients mean + noise, mean ~ N(0, snr^2) fixed per weight, noise ~
    N(0, 1) per step; the share with |delta| < threshold is returned (0: exactly equal). This is
    the null model of the sparsity of arXiv 2609.35259.

    Args:
        weights: The initial weights: a tensor, an array, or a mapping of them.
        lr: Rate after warm-up.
        steps: Optimizer steps; none of them moves anything if it is 0.
        warmup: Steps of linear warm-up from rate 0.
        param_dtype: In which weights are updated: "bfloat16" or "float32" (also as torch dtype).
        threshold: Of the simulation.
        simulate: Simulate instead of counting.
        snr: Of the simulation.
        seed: Of the simulation.

    Raises:
        ValueError: No weights, weights that are not finite, or an argument out of range.
    """
    run = NullRun(lr, steps, warmup, _known(param_dtype), snr, seed)
    _check(run, (threshold,))
    if simulate:
        return simulated_unmoved(weights, run, thresholds=(threshold,))[0]
    edge = largest_movable(lr, param_dtype=run.param_dtype) if steps > 0 else 0.0
    parts, dtype = _parts(weights), _DTYPES[run.param_dtype]
    fixed = sum(int((_finite(part).to(dtype).abs() >= edge).sum()) for part in parts)
    return fixed / sum(part.numel() for part in parts)


def simulated_unmoved(
    weights: Weights,
    run: NullRun,
    *,
    thresholds: Sequence[float],
    stored_dtype: str | None = None,
) -> tuple[float, ...]:
    """The simulation of `rounding_null` at several thresholds at once.

    Args:
        weights: The initial weights.
        run: The optimizer run.
        thresholds: Share with |delta| strictly below each; 0 means exactly equal.
        stored_dtype: In which weights are stored and compared; None is `run.param_dtype`. It
            differs where a float32 master copy takes the updates of bfloat16 weights.

    Returns:
        One share per threshold.

    Raises:
        ValueError: As `rounding_null`.
    """
    _check(run, thresholds)
    dtype = _DTYPES[_known(run.param_dtype)]
    stored = _DTYPES[_known(stored_dtype)] if stored_dtype else dtype
    start = _subsample(_parts(weights), run.seed).to(stored)
    end = _adam_on_noise(start.to(dtype), run).to(stored)
    moved = (end.double() - start.double()).abs()
    return tuple(
        float(((moved < tau) if tau > 0 else (moved == 0)).double().mean()) for tau in thresholds
    )


def _adam_on_noise(start: Tensor, run: NullRun) -> Tensor:
    """The weights after `run.steps` of torch's own AdamW on mean + noise gradients."""
    noise = torch.Generator().manual_seed(derive_seed(run.seed, "rounding null", "gradients"))
    mean = run.snr * torch.randn(start.shape, generator=noise)
    weights = torch.nn.Parameter(start.clone())
    largest_movable(run.lr)  # refuses a rate that is not one
    optimizer = torch.optim.AdamW([weights], lr=run.lr, weight_decay=0.0, foreach=False)
    for step in range(run.steps):
        warm = min(1.0, step / run.warmup) if run.warmup else 1.0
        optimizer.param_groups[0]["lr"] = run.lr * warm
        weights.grad = (mean + torch.randn(start.shape, generator=noise)).to(start.dtype)
        optimizer.step()
    return weights.detach()


def _check(run: NullRun, thresholds: Sequence[float]) -> None:
    named = [("steps", run.steps), ("warmup", run.warmup), ("snr", run.snr)]
    for name, value in [*named, *(("threshold", threshold) for threshold in thresholds)]:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def _known(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"param_dtype must be one of {', '.join(_DTYPES)}, got '{name}'")
    return name


def _parts(weights: Weights) -> list[Tensor]:
    """The weights as flat vectors, without a copy."""
    given = list(weights.values()) if isinstance(weights, Mapping) else [weights]
    parts = [torch.as_tensor(part).detach().flatten() for part in given]
    if sum(part.numel() for part in parts) == 0:
        raise ValueError("weights is empty: the null model needs the initial weights")
    return parts


def _finite(vector: Tensor) -> Tensor:
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("weights holds NaN or infinite numbers: load the initial weights again")
    return vector


def _subsample(parts: list[Tensor], seed: int) -> Tensor:
    """All weights, or `SIMULATED_WEIGHTS` of them with replacement, on the CPU in float32."""
    total = sum(part.numel() for part in parts)
    if total <= SIMULATED_WEIGHTS:
        return _finite(torch.cat([part.cpu().float() for part in parts]))
    # With replacement: a permutation of a billion weights would cost more than the simulation.
    drawn = stream(seed, "rounding null", "subsample").integers(total, size=SIMULATED_WEIGHTS)
    chosen, first, found = torch.from_numpy(np.sort(drawn)), 0, []
    for part in parts:
        inside = (chosen >= first) & (chosen < first + part.numel())
        found.append(part[(chosen[inside] - first).to(part.device)].cpu().float())
        first += part.numel()
    return _finite(torch.cat(found))
