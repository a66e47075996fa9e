"""Running a loss on many records under one `vmap`, and what is known about the tensors inside."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_MASKS = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@contextmanager
def vectorised() -> Iterator[None]:
    """Let models run under `torch.func.vmap` that would look at values only to save work.

    transformers skips an attention mask that hides nothing, unless the mask is being traced, where values cannot be
    read. Neither can they here, so its masks are told so; what they compute is the same.
    """
    modules: list[Any] = [m for m in map(sys.modules.get, _MASKS) if hasattr(m, "is_tracing")]
    before = [module.is_tracing for module in modules]
    try:
        for module in modules:
            module.is_tracing = _unreadable(module.is_tracing)
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():  # the fused attention has no per-record form
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        for module, is_tracing in zip(modules, before, strict=True):
            module.is_tracing = is_tracing


def _unreadable(is_tracing: Any) -> Any:
    def told(tensor: Any = None) -> bool:
        wrapped = isinstance(tensor, Tensor) and _functorch.is_functorch_wrapped_tensor(tensor)
        return wrapped or is_tracing(tensor)

    return told


class Records:
    """The records that run together under one `vmap`.

    Args:
        zero: A zero of each record's own, as it is inside.
    """

    def __init__(self, zero: Tensor) -> None:
        self.zero = zero
        self.level = _functorch.maybe_get_level(zero)
        self.count = len(_functorch.get_unwrapped(zero))

    def bare(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        """Return a tensor as it is outside, and which of its dimensions the records are; None if they share it."""
        if not _functorch.is_batchedtensor(tensor) or _functorch.maybe_get_level(tensor) != self.level:
            return tensor, None
        return _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a tensor as it is outside, with the records along its first dimension."""
        bare, place = self.bare(tensor)
        return bare.expand(self.count, *bare.shape) if place is None else bare.movedim(place, 0)

    def apart(self, tensor: Tensor) -> Tensor:
        """Return a tensor of which each record has its own."""
        return tensor + self.zero.to(tensor.dtype) if self.bare(tensor)[1] is None else tensor

    def wrapped(self, tensor: Tensor) -> Tensor:
        """Return as it is inside a tensor with the records along its first dimension."""
        return _functorch._add_batch_dim(tensor, 0, self.level)


def attention(
    records: Records,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Tensor | None:
    """Return attention with the records beside the batch, where the fused kernels can be used; None for odd calls.

    Args:
        records: What runs together.
        query: As in `torch.nn.functional.scaled_dot_product_attention`, as all others.
        key: The same.
        value: The same.
        attn_mask: The same.
        dropout_p: The same.
        is_causal: The same.
        **others: The same.
    """
    tensors = [t for t in (query, key, value, attn_mask) if t is not None]
    wrapped = [t for t in tensors if _functorch.is_functorch_wrapped_tensor(t)]
    if dropout_p > 0.0 or not wrapped or any(_functorch.maybe_get_level(t) != records.level for t in wrapped):
        return None
    if any(t.dim() != 4 or len(t) not in (1, len(query)) for t in tensors):
        return None
    queries, keys, values, *masks = (records.rows(t.expand(len(query), *t.shape[1:])).flatten(0, 1) for t in tensors)
    mask = masks[0] if masks else None
    with sdpa_kernel(_KERNELS):
        out = functional.scaled_dot_product_attention(queries, keys, values, mask, 0.0, is_causal, **others)
    return records.wrapped(out.reshape(records.count, len(query), *out.shape[1:]))


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, **others: Any) -> Tensor:
    """Return rows of a weight as torch does, those of padding without a gradient.

    `vmap` forgets padding in the backward pass where each record has a weight of its own, for all records but the
    first.

    Args:
        input: As in `torch.nn.functional.embedding`, as all others.
        weight: The same.
        padding_idx: The same.
        **others: The same.
    """
    out = functional.embedding(input, weight, **others)
    if padding_idx is None:
        return out
    return torch.where((input == padding_idx % len(weight))[..., None], out.detach(), out)


def group_norm(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return what torch does, also where channels are last in memory, an order of places that `vmap` may not know.

    Args:
        input: As in `torch.nn.functional.group_norm`, as all others.
        *args: The same.
        **kwargs: The same.
    """
    try:
        return functional.group_norm(input, *args, **kwargs)
    except RuntimeError:
        if input.dim() < 4:
            raise
        return functional.group_norm(input.flatten(2), *args, **kwargs).view(input.shape)
