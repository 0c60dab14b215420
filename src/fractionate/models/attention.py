"""Causal grouped-query attention of one row on a CPU, forwards and backwards.

Queries go by blocks and see no key behind their block, so that little of the masked half is
computed and no more than one block's weights exist at once. The weights are computed again for the
backward pass. With 16-bit tensors this is several times faster than the backward pass of torch's
fused attention on CPUs; with float32 it is faster too where rows are short.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

QUERY_BLOCK: Final = 128
"""Queries whose attention weights exist at once."""


def attend(
    q: Float[Tensor, "queries heads dim"],
    k: Float[Tensor, "keys kv_heads dim"],
    v: Float[Tensor, "keys kv_heads dim"],
) -> Float[Tensor, "queries width"]:
    """Attention of the last queries of a row to all of its keys, heads side by side."""
    keys, values = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    parts: list[Tensor] = []
    for low, high, end in _query_blocks(len(q), len(k)):
        weights = _weights(_grouped(q[low:high], len(keys)), keys, high - low, end)
        parts.append(_ungrouped(torch.bmm(weights, values[:, :end]), high - low))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)


def attend_backward(
    gradient: Float[Tensor, "queries width"],
    q: Float[Tensor, "queries heads dim"],
    k: Float[Tensor, "keys kv_heads dim"],
    v: Float[Tensor, "keys kv_heads dim"],
) -> tuple[
    Float[Tensor, "queries heads dim"],
    Float[Tensor, "keys kv_heads dim"],
    Float[Tensor, "keys kv_heads dim"],
]:
    """Gradients of `attend` to queries, keys and values."""
    keys, values = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    upstream = gradient.view_as(q)
    for_queries: list[Tensor] = []
    for_keys, for_values = torch.zeros_like(keys), torch.zeros_like(values)
    for low, high, end in _query_blocks(len(q), len(k)):
        queries = _grouped(q[low:high], len(keys))
        weights = _weights(queries, keys, high - low, end)
        above = _grouped(upstream[low:high], len(keys))
        for_values[:, :end] += torch.bmm(weights.transpose(1, 2), above)
        scores = torch.bmm(above, values[:, :end].transpose(1, 2))
        scores = torch._softmax_backward_data(scores, weights, -1, scores.dtype)
        scores *= q.shape[-1] ** -0.5
        for_queries.append(_ungrouped(torch.bmm(scores, keys[:, :end]), high - low))
        for_keys[:, :end] += torch.bmm(scores.transpose(1, 2), queries)
    return torch.cat(for_queries), for_keys.transpose(0, 1), for_values.transpose(0, 1)


def _query_blocks(queries: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """First and last query of each block and one behind the last key that it sees."""
    for low in range(0, queries, QUERY_BLOCK):
        high = min(low + QUERY_BLOCK, queries)
        yield low, high, keys - queries + high


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """Queries of all heads that share keys in one matrix: [kv_heads, group * queries, dim]."""
    return x.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def _ungrouped(x: Tensor, queries: int) -> Tensor:
    """The reverse of `_grouped`: [queries, heads, dim]."""
    return x.unflatten(1, (-1, queries)).permute(2, 0, 1, 3).flatten(1, 2)


def _weights(queries: Tensor, keys: Tensor, count: int, end: int) -> Tensor:
    """Attention weights of `count` grouped queries, the last of which sees `end` keys."""
    seen = keys[:, :end].transpose(1, 2)
    scale = queries.shape[-1] ** -0.5
    scores = torch.baddbmm(queries.new_zeros(()), queries, seen, beta=0, alpha=scale)
    last_keys = scores.unflatten(1, (-1, count))[..., end - count :]
    last_keys += _triangle(queries.dtype)[:count, :count]
    return torch.softmax(scores, -1)


@lru_cache
def _triangle(dtype: torch.dtype) -> Tensor:
    """Minus infinity where a key lies behind a query of the same block."""
    return torch.full((QUERY_BLOCK, QUERY_BLOCK), -torch.inf, dtype=dtype).triu(1)
