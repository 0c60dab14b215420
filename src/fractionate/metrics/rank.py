"""Rank measures of an update matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RankMeasures:
    """How many directions an update uses; noise-like updates are nearly always of full rank.

    Attributes:
        singular_values: In falling order.
        rank: Numerical rank at tolerance max(m, n) eps sigma_1 in float32.
        share: rank / min(m, n).
        stable: Frobenius norm squared / sigma_1^2.
        entropy: exp of the entropy of the singular values' shares.
    """

    singular_values: tuple[float, ...]
    rank: int
    share: float
    stable: float
    entropy: float


def rank_measures(delta: Tensor) -> RankMeasures:
    """Numerical, stable and entropy rank of a matrix, from one singular value decomposition.

    Args:
        delta: [m, n]; decomposed in float64.

    Returns:
        The measures; all ranks are 0 for a zero matrix.

    Raises:
        ValueError: Not a matrix, or without an entry.
    """
    if delta.ndim != 2 or delta.numel() == 0:
        raise ValueError(f"delta must be a matrix with entries, got shape {tuple(delta.shape)}")
    sigma = torch.linalg.svdvals(delta.double())
    largest = float(sigma[0])
    if largest == 0.0:
        return RankMeasures(tuple(sigma.tolist()), 0, 0.0, 0.0, 0.0)
    tolerance = max(delta.shape) * torch.finfo(torch.float32).eps * largest
    rank = int((sigma > tolerance).sum())
    shares = sigma / sigma.sum()
    return RankMeasures(
        singular_values=tuple(sigma.tolist()),
        rank=rank,
        share=rank / min(delta.shape),
        stable=float(sigma.square().sum()) / largest**2,
        entropy=float(torch.special.entr(shares).sum().exp()),
    )
