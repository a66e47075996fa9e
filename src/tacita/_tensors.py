"""Nested state as tensors and plain data, and tensors as safetensors. Shared tensors are stored once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Take the tensors out of nested dicts and lists, leaving plain data with references to them.

    Args:
        state: Nested dicts and lists of tensors and plain data.

    Returns:
        Tensors by name, each one once even if the state holds it under several names, and the plain data.

    Raises:
        ValueError: If the state holds anything else.
    """
    import torch

    found: dict[str, Tensor] = {}
    names: dict[Any, str] = {}

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, torch.Tensor):
            same = _identity(node)
            if same not in names:
                while name in found:  # "a.b" beside b in a
                    name += "'"
                names[same], found[name] = name, node.detach().cpu()
            return {"tensor": names[same]}
        if isinstance(node, Mapping):
            return {"dict": [[_key(k), walk(v, f"{name}.{k}" if name else str(k))] for k, v in node.items()]}
        if isinstance(node, list | tuple):
            return {"list": [walk(v, f"{name}.{i}") for i, v in enumerate(node)]}
        if node is None or isinstance(node, bool | int | float | str):
            return {"value": node}
        raise ValueError(f"Cannot save {type(node).__name__} at {name or 'the top'}: only tensors and plain data.")

    return found, walk(state, "")


def unflatten(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `flatten`."""
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if "dict" in skeleton:
        return {key: unflatten(value, tensors) for key, value in skeleton["dict"]}
    if "list" in skeleton:
        return [unflatten(value, tensors) for value in skeleton["list"]]
    return skeleton["value"]


def encoded(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as safetensors, which refuses those that share memory: they are copied.

    Args:
        tensors: By name.
        metadata: What the file says besides.
    """
    from safetensors.torch import save

    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        memory = whole.untyped_storage().data_ptr()
        apart[name] = whole.clone() if memory in seen else whole
        seen.add(memory)
    return save(apart, None if metadata is None else dict(metadata))


def weights_file(weights: Mapping[str, Any]) -> tuple[bytes, Any]:
    """Return parameters and buffers as plain torch and transformers read them, and how to rebuild their dict.

    A tensor that has several names, such as an embedding tied to the output layer, is stored under the first one; the
    others are in the metadata, as `safetensors.torch.save_model` writes them.

    Args:
        weights: As `Module.state_dict` returns them.

    Returns:
        The file's content, and what `unflatten` takes with its tensors.
    """
    tensors, skeleton = flatten(weights)
    kept = {name: entry["tensor"] for name, entry in skeleton["dict"] if "tensor" in entry}
    others = {name: first for name, first in kept.items() if name != first}
    return encoded(tensors, {**others, "format": "pt"}), skeleton


def _identity(tensor: Tensor) -> Any:
    """Return what two tensors have in common if and only if they are the same part of the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    memory = tensor.untyped_storage().data_ptr()
    return tensor.device, memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _key(key: object) -> int | str:
    if isinstance(key, int | str):
        return key
    raise ValueError(f"Cannot save a key of type {type(key).__name__}.")
