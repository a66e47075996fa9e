"""Calls of layers, seen while a loss runs: what they were given, and where the gradient at their output will arrive.

A weight's gradient follows from these two, which the backward pass has anyway, so that it need not be computed record
by record. Whatever else uses a weight is noticed, and that weight is then differentiated directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tacita.training.recurrent import unrollable, unrolled
from tacita.training.vectors import Records, attention, embedding, group_norm

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Any], Tensor]  # (parameters, one record) -> a scalar


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        kind: Which of the layers below.
        given: What it was applied to.
        weight: Its weight.
        bias: Its bias.
        settings: What else its gradient depends on.
    """

    kind: str
    given: Tensor
    weight: Tensor | None
    bias: Tensor | None = None
    settings: Any = None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call("linear", input, weight, bias)


def _product(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Call | None:
    return Call("product", mat1, mat2, input) if beta == alpha == 1 and input.dim() == 1 else None


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    return Call("embedding", input, weight, None, padding)


def _layer_norm(input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Call:
    return Call("layer norm", input, weight, bias, (tuple(normalized_shape), eps))


def _group_norm(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Call:
    return Call("group norm", input, weight, bias, (num_groups, eps))


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call | None:
    places = weight.dim() - 2
    if groups != 1 or input.dim() != weight.dim():
        return None
    if padding == "valid":
        padding = 0
    if isinstance(padding, str):
        return None

    def each(value: Any) -> tuple[int, ...]:
        return (int(value),) * places if isinstance(value, int) else tuple(value) * (places if len(value) == 1 else 1)

    return Call("convolution", input, weight, bias, (each(stride), each(padding), each(dilation)))


_READERS: dict[Any, Callable[..., Call | None]] = {
    functional.linear: _linear,
    torch.addmm: _product,
    functional.conv1d: _convolution,
    functional.conv2d: _convolution,
    functional.conv3d: _convolution,
    functional.embedding: _embedding,
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
}


def _read(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    reader = _READERS.get(func)
    if reader is None:
        return None
    try:
        return reader(*args, **kwargs)
    except TypeError:  # another way to call it
        return None


@dataclass(frozen=True)
class Seen:
    """What one look at a loss says.

    Attributes:
        tapped: Parameters that layers alone use.
        convolutions: Whether there are weights of two-dimensional convolutions among them.
        size: A guess at the bytes that one record takes.
    """

    tapped: frozenset[str]
    convolutions: bool
    size: int


def watched(loss: Loss, parameters: Parameters, one: Any) -> Seen:
    """Return which parameters to tap, and a guess at the bytes that one record takes, from a look at one record.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        one: A record, with a first dimension of one.
    """
    watch = _Watch({id(p): name for name, p in parameters.items()})
    with torch.no_grad(), watch:
        loss(parameters, tree_map(lambda t: t[0], one))
    tapped = frozenset() if watch.nested else frozenset(watch.layers - watch.others)
    size = sum(p.numel() for name, p in parameters.items() if name not in tapped)
    flat = any(parameters[name].dim() == 4 for name in tapped)
    return Seen(tapped, flat, 8 * size + 4 * watch.elements)


class OtherwiseUsedError(Exception):
    """A tapped parameter is not used as it was when the loss was watched."""


class _Watch(TorchFunctionMode):
    """Note where each parameter is used, and how much the loss computes."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.layers: set[str] = set()
        self.others: set[str] = set()
        self.elements, self.nested = 0, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if unrollable(func, args, kwargs):
            with self:
                return unrolled(func, *args)
        call = _read(func, args, kwargs)
        roles = set() if call is None else {id(call.weight), id(call.bias)} - {id(call.given)}
        out = func(*args, **kwargs)
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self.names and not _no_use(out):
                (self.layers if id(leaf) in roles else self.others).add(self.names[id(leaf)])
            if isinstance(leaf, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(leaf):
                self.nested = True  # a derivative inside the loss uses weights out of sight
        if isinstance(out, Tensor):
            self.elements += out.numel()
        return out


@dataclass(frozen=True)
class Use:
    """One call of a layer with tapped parameters, for all records of a chunk."""

    call: Call  # given has the records along its first dimension
    weight: str | None
    bias: str | None
    at: GradientEdge
    place: int  # of the records in the output
    version: int

    @property
    def changed(self) -> bool:
        """Whether what the layer was given has been overwritten since."""
        return bool(self.call.given._version != self.version)


class Tap(TorchFunctionMode):
    """Note each call of a layer with tapped parameters while a loss runs under `vmap`.

    Args:
        names: The tapped parameters' names, by the id of their tensors.
        records: What runs together.
    """

    def __init__(self, names: Mapping[int, str], records: Records) -> None:
        super().__init__()
        self.names, self.records = names, records
        self.uses: list[Use] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            out = attention(self.records, *args, **kwargs)
            return func(*args, **kwargs) if out is None else out
        if unrollable(func, args, kwargs):
            with self:
                return unrolled(func, *args)
        call = _read(func, args, kwargs)
        used = [id(leaf) for leaf in _tensors((args, kwargs)) if id(leaf) in self.names]
        if func is functional.group_norm:
            func = group_norm
        if not used:
            return embedding(*args, **kwargs) if func is functional.embedding else func(*args, **kwargs)
        if call is None and _no_use(out := func(*args, **kwargs)):
            return out
        if call is None or id(call.given) in used or not set(used) <= {id(call.weight), id(call.bias)}:
            raise OtherwiseUsedError
        out = self.records.apart(func(*args, **kwargs))
        bare, place = self.records.bare(out)
        if place is not None and bare.requires_grad:
            given = self.records.rows(call.given)
            own = Call(call.kind, given.detach(), call.weight, call.bias, call.settings)
            weight, bias = self.names.get(id(call.weight)), self.names.get(id(call.bias))
            self.uses.append(Use(own, weight, bias, get_gradient_edge(bare), place, given._version))
        return out


def _no_use(out: Any) -> bool:
    """Return whether what came out of a call has no gradient, such as a dtype or a shape."""
    return out is not None and not _tensors(out)


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in arguments; the same as `tree_leaves` would find, for less."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for v in value for t in _tensors(v)]
    return [t for v in value.values() for t in _tensors(v)] if isinstance(value, Mapping) else []
