"""Running a model on many records under one `vmap`: what has to be told to whom while it does."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_MASKS = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")


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
            warnings.filterwarnings("ignore", message="There is a performance drop")  # an LSTM runs record by record
            yield
    finally:
        for module, is_tracing in zip(modules, before, strict=True):
            module.is_tracing = is_tracing


def _unreadable(is_tracing: Any) -> Any:
    def told(tensor: Any = None) -> bool:
        wrapped = isinstance(tensor, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return wrapped or is_tracing(tensor)

    return told
