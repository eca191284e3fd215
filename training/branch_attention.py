"""Attention for a row of examples that share a prefix (`training.packing`).

Each token attends to the shared prefix and to its own example, but to no other example. A mask over the whole
row would compute the same, but most of that work is wasted: nine tenths for a row of sixteen requests. A GPU
still computes the masked row faster than one kernel per example. A CPU does not, so there each example is
computed on its own. The module is independent of the model, because transformers passes the batch's
`branches` to the attention of every layer.
"""
# The types of transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "branches"
SHARED, PADDING = -1, -2
"""Values in `branches` for tokens that belong to no example: those of the shared prefix, and padding."""


@contextmanager
def attend_by_branches(model: Any) -> Generator[None]:
    """While the block runs, make `model` read rows with `branches`. It cannot read other inputs then."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _make_no_mask)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    before = inner.config._attn_implementation  # noqa: SLF001  # transformers has no public name for it
    inner.set_attn_implementation(NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation(before)


def _make_no_mask(*_: Any, **__: Any) -> None:
    """Make no mask, because `branches` replaces it."""


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    branches: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention. The signature is that of transformers.

    Shapes: query (B, H, T, D), key and value (B, G, T, D) for G groups of heads, branches (B, T). The result
    is (B, T, H, D).
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if query.is_cuda:
        sees = visible(branches)
        rows = scaled_dot_product_attention(query, key, value, sees, scale=scaling)
        return rows.transpose(1, 2).contiguous(), None
    numbers = cast("list[list[int]]", branches.tolist())
    rows = [
        _attend_row(query[[row]], key[[row]], value[[row]], own, scaling) for row, own in enumerate(numbers)
    ]
    return torch.cat(rows).transpose(1, 2).contiguous(), None


def visible(branches: torch.Tensor) -> torch.Tensor:
    """Return the earlier shared or own-branch tokens that each token attends to, as (B, 1, T, T)."""
    length = branches.shape[1]
    own = branches[:, None, :, None] == branches[:, None, None, :]
    shared = (branches == SHARED)[:, None, None, :]
    return (own | shared) & torch.ones(length, length, dtype=torch.bool, device=branches.device).tril()


def _attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    branches: Sequence[int],
    scaling: float | None,
) -> torch.Tensor:
    """Compute attention for one row, (1, H, T, D): padding, prefix, branches. Split it only once, as each
    slice's gradient is as long as the row.
    """
    runs = [(branch, len(list(run))) for branch, run in groupby(branches)]
    lengths = [length for _, length in runs]
    parts: list[torch.Tensor] = []
    shared_key, shared_value = key[:, :, :0], value[:, :, :0]
    split = (torch.split(each, lengths, dim=2) for each in (query, key, value))
    for (branch, length), its_query, its_key, its_value in zip(runs, *split, strict=True):
        if branch == PADDING:
            parts.append(its_value)
            continue
        if branch == SHARED:
            shared_key, shared_value, sees = its_key, its_value, None
        else:
            its_key = torch.cat([shared_key, its_key], dim=2)
            its_value = torch.cat([shared_value, its_value], dim=2)
            before = shared_key.shape[2]
            sees = torch.ones(length, before + length, dtype=torch.bool, device=query.device).tril(before)
        parts.append(
            scaled_dot_product_attention(
                its_query, its_key, its_value, sees, is_causal=sees is None, scale=scaling
            )
        )
    return torch.cat(parts, dim=2)
