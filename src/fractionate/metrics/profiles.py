"""Profiles along completions, of entropies and of any other per-token quantity."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BIN = 50
"""Tokens per position bin in profiles along a completion."""


def position_profile(
    values: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time"], *, width: int = BIN
) -> list[tuple[float, int]]:
    """Mean of a per-token quantity by position bin, with the tokens that it rests on.

    Args:
        values: Per-token values, e.g. entropies in nats; what lies under the mask is not read.
        mask: True on completion tokens.
        width: Positions per bin.

    Returns:
        One (mean, tokens) per bin up to the last bin with a token.

    Raises:
        ValueError: A width below 1.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 position, got {width}")
    bins = torch.arange(values.shape[1], device=values.device).div(width, rounding_mode="floor")
    index = bins.expand_as(values)[mask]
    if index.numel() == 0:
        return []
    count = torch.bincount(index)
    total = torch.bincount(index, weights=values[mask].double(), minlength=count.numel())
    pairs = zip(total.tolist(), count.tolist(), strict=True)
    return [(summed / tokens if tokens else 0.0, tokens) for summed, tokens in pairs]
