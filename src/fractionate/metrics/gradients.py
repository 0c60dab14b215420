"""Gradients beyond their norm: clipping, Adam under spikes, noise, cosines, and policy distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.rng import derive_seed


@dataclass(frozen=True)
class GradientNoise:
    """Signal and noise of a gradient, from K micro-gradients of distinct rollouts.

    Attributes:
        mean_norm_squared: ||mean g||^2; biased upwards by trace_variance / K.
        unbiased_norm_squared: U = (||sum g||^2 - sum ||g||^2) / (K (K - 1)); it may be negative.
        trace_variance: sum ||g_k - mean g||^2 / (K - 1).
        snr: U / trace_variance; infinite where the micro-gradients are all equal.
    """

    mean_norm_squared: float
    unbiased_norm_squared: float
    trace_variance: float
    snr: float


@dataclass(frozen=True)
class GradientCosines:
    """Agreement of two arms' gradients at the same parameters and prompts.

    Attributes:
        plain: Cosine of the mean gradients; noise pulls it towards 0.
        debiased: <mean a, mean b> / sqrt(U_a U_b); not clipped, so noise can carry it beyond 1.
            None where an unbiased squared norm is not positive.
    """

    plain: float
    debiased: float | None


def clip_coefficient(norm: float, max_norm: float | None = 1.0) -> float:
    """The factor of torch's global-norm clipping: min(1, max_norm / (norm + 1e-6)); 1 without."""
    return 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))


def adam_updates(
    gradients: Sequence[float],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> np.ndarray:
    """Normalised Adam updates m_hat / (sqrt(v_hat) + eps) of a scalar gradient, one per step.

    Their sum is the net movement in units of the learning rate. A single spike shrinks it, because
    it stays in v for about 1 / (1 - beta2) steps but in m for only 1 / (1 - beta1).

    Returns:
        [steps] signed updates.
    """
    first = second = 0.0
    updates = []
    for step, gradient in enumerate(gradients, start=1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        mean = first / (1 - betas[0] ** step)
        updates.append(mean / (math.sqrt(second / (1 - betas[1] ** step)) + eps))
    return np.array(updates)


def gradient_noise(gradients: Float[Tensor, "samples parameters"]) -> GradientNoise:
    """Unbiased squared norm, trace of the variance and their ratio.

    Args:
        gradients: K micro-gradients of distinct rollouts; at least 4 are advised.

    Raises:
        ValueError: Fewer than two gradients.
    """
    grads = gradients.double()
    k = grads.shape[0]
    if k < 2:
        raise ValueError(f"gradient noise needs at least 2 micro-gradients, got {k}")
    mean = grads.mean(0)
    unbiased = float(grads.sum(0).square().sum() - grads.square().sum()) / (k * (k - 1))
    trace = float((grads - mean).square().sum()) / (k - 1)
    snr = unbiased / trace if trace > 0 else math.inf
    return GradientNoise(float(mean.square().sum()), unbiased, trace, snr)


def gradient_cosines(
    first: Float[Tensor, "samples parameters"], second: Float[Tensor, "others parameters"]
) -> GradientCosines:
    """Plain and debiased cosine of two arms' mean gradients.

    Raises:
        ValueError: Fewer than two gradients in an arm, other parameters, or a mean gradient of 0.
    """
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"gradients of {first.shape[1]} and {second.shape[1]} parameters")
    noise = gradient_noise(first), gradient_noise(second)
    inner = float(first.double().mean(0) @ second.double().mean(0))
    norms = noise[0].mean_norm_squared * noise[1].mean_norm_squared
    if norms == 0.0:
        raise ValueError("a mean gradient is exactly 0: it has no direction")
    signals = [each.unbiased_norm_squared for each in noise]
    debiased = inner / math.sqrt(signals[0] * signals[1]) if min(signals) > 0 else None
    return GradientCosines(inner / math.sqrt(norms), debiased)


def project(
    gradient: Float[Tensor, " parameters"], *, buckets: int = 65_536, seed: int = 0
) -> Float[Tensor, " buckets"]:
    """A gradient through one fixed random projection: each entry, signed, into one bucket.

    Inner products survive on average, with a relative error of about 1 / sqrt(buckets), so the
    gradients of many arms can be kept and compared.

    Args:
        gradient: All parameters' gradients, flattened in a fixed order.
        buckets: Length of the projection.
        seed: The same for all gradients that are to be compared.
    """
    fixed = torch.Generator().manual_seed(derive_seed(seed, "gradient projection"))
    places = torch.randint(buckets, gradient.shape, generator=fixed)
    signs = torch.randint(2, gradient.shape, generator=fixed) * 2 - 1
    signed = gradient.detach().cpu() * signs
    return torch.zeros(buckets, dtype=signed.dtype).index_add_(0, places, signed)


def sequence_tv(
    log_prob: Float[Tensor, " samples"], other_log_prob: Float[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """max(0, 1 - rho'(y) / rho(y)) of completions y drawn from rho.

    Its mean is an unbiased estimate of the total variation of rho and rho', in [0, 1]; a mean near
    1 says that the two hardly share a completion and that bounds in this distance say nothing. The
    sum over positions of the next-token total variation (`losses.bounds.total_variation`) along
    such completions bounds the same distance from above.

    Args:
        log_prob: log rho(y), summed over tokens, in nats.
        other_log_prob: log rho'(y).
    """
    return (-torch.expm1(other_log_prob - log_prob)).clamp(min=0.0)
