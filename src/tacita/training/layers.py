"""Per-record gradients of one chunk of records, most of them never made.

Weights of linear and two-dimensional convolution layers that are used once get their gradients from the layer's input
and the gradient at its output (both of which the backward pass has anyway): a linear layer's per-record norm is then a
product of two norms, and nothing of the size (records x weights) is ever made for it. All other parameters, and
weights used in any other way, are differentiated directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tacita.training.vectors import vectorised

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Any], Tensor]  # (parameters, one record) -> a scalar

_BLOCK = 32  # records whose patches are copied at once
_PIECE = 128
_SMALLEST = 1e-12  # norms below need more than float32's squares


@dataclass(frozen=True)
class Site:
    """One call of a linear or convolution layer whose weight is used nowhere else."""

    weight: str
    bias: str | None
    shape: tuple[int, ...]  # of the layer's output for one record
    dtype: torch.dtype  # of that output
    convolution: tuple[tuple[int, int], ...] | None  # stride, padding, dilation


def watched(loss: Loss, parameters: Parameters, one: Any) -> tuple[tuple[Site, ...], int]:
    """Return the layers to tap, and a guess at the bytes that one record takes, from a look at one record.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        one: A record, with a first dimension of one.
    """
    watch = _Watch({id(p): name for name, p in parameters.items()})
    with torch.no_grad(), watch:
        loss(parameters, tree_map(lambda t: t[0], one))
    once = [s for s in watch.sites if watch.uses[s.weight] == 1 and (s.bias is None or watch.uses[s.bias] == 1)]
    sites = () if watch.nested else tuple(once)
    tapped = {name for s in sites for name in (s.weight, s.bias) if name is not None and s.convolution is None}
    size = sum(p.numel() for name, p in parameters.items() if name not in tapped)
    return sites, 8 * size + 4 * watch.elements


@dataclass
class Chunk:
    """Per-record gradients of one chunk, most of them implicit."""

    losses: Tensor
    direct: dict[str, Tensor]  # name -> (records, numel)
    outer: list[tuple[Site, Tensor, Tensor]]  # linear layers at one position: output gradient, input
    channels_last: set[str]  # convolution weights, whose gradients in `direct` have their channels last

    def norms(self) -> Tensor:
        """Return each record's norm over all parameters, float64; not finite where a gradient is not."""
        squares = [_norm(g).square() for g in self.direct.values()]
        for site, output, given in self.outer:
            # The bias sees an input of one. A NaN times zero stays NaN here, so that the record is dropped.
            own = _norm(given).square() + (0.0 if site.bias is None else 1.0)
            squares.append(_norm(output).square() * own)
        return torch.stack(squares).sum(0).sqrt()

    def add_to(self, sums: Parameters, factors: Tensor, dropped: Tensor) -> None:
        """Add the records' gradients, each times its factor, to sums; those dropped contribute exactly zero."""
        spoiled = bool(dropped.any())
        for name, gradients in self.direct.items():
            if spoiled:
                gradients[dropped] = 0.0
            total = factors.to(gradients.dtype) @ gradients
            if name in self.channels_last:
                out, channels, rows, columns = sums[name].shape
                sums[name] += total.view(out, rows, columns, channels).permute(0, 3, 1, 2)
            else:
                sums[name] += total.view(sums[name].shape)
        for site, output, given in self.outer:
            if spoiled:  # in copies: the input may be the caller's own record
                output, given = (t.masked_fill(dropped[:, None], 0.0) for t in (output, given))
            kind = sums[site.weight].dtype
            scaled = output.to(kind) * factors.to(kind)[:, None]
            sums[site.weight].addmm_(scaled.T, given.to(kind))
            if site.bias is not None:
                sums[site.bias] += scaled.sum(0)


def differentiated(loss: Loss, parameters: Parameters, part: Any, sites: tuple[Site, ...]) -> Chunk:
    """Return the per-record gradients of a chunk.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        part: Records along the first dimension.
        sites: The layers to tap, from `watched`.
    """
    try:
        return _differentiated(loss, parameters, part, sites)
    except _OtherwiseUsedError:  # a model that runs its layers differently from call to call
        return _differentiated(loss, parameters, part, ())


def _differentiated(loss: Loss, parameters: Parameters, part: Any, sites: tuple[Site, ...]) -> Chunk:
    tapped = {name for s in sites for name in (s.weight, s.bias) if name is not None}
    fixed = {name: parameters[name] for name in tapped}
    # Channels last all through the network: on a CPU pooling and convolution are several times faster that way.
    fixed |= {s.weight: _channels_last(fixed[s.weight]) for s in sites if s.convolution is not None}
    ordinary = {name: p for name, p in parameters.items() if name not in tapped}
    names = {id(p): name for name, p in fixed.items()}
    taps = {s.weight: torch.zeros(s.shape, dtype=s.dtype, device=parameters[s.weight].device) for s in sites}

    def value(ordinary: Parameters, taps: Parameters, record: Any) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        tapping = _Tap(names, taps)
        with tapping if taps else nullcontext():
            out = loss({**fixed, **ordinary}, record)
        if len(tapping.inputs) < len(taps):
            raise _OtherwiseUsedError
        return out, (out.detach(), tapping.inputs)

    differentiate = vmap(grad(value, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0), randomness="different")
    with vectorised():
        (direct, outputs), (losses, inputs) = differentiate(ordinary, taps, part)
    flat = {name: g.to(wide(g.dtype)).reshape(len(g), g[0].numel()) for name, g in direct.items()}
    chunk = Chunk(losses.double(), flat, [], set())
    for site in sites:
        output, given = (t[site.weight].to(wide(t[site.weight].dtype)) for t in (outputs, inputs))
        if site.convolution is not None:
            weight, bias = _convolution_gradients(site, output, given, parameters[site.weight].shape)
            chunk.channels_last.add(site.weight)
        else:
            output, given = output.flatten(1, -2), given.flatten(1, -2)
            if output.shape[1] == 1:
                chunk.outer.append((site, output[:, 0], given[:, 0]))
                continue
            weight, bias = torch.bmm(output.transpose(1, 2), given), output.sum(1)
        chunk.direct[site.weight] = weight.flatten(1)
        if site.bias is not None:
            chunk.direct[site.bias] = bias
    return chunk


def _convolution_gradients(site: Site, output: Tensor, given: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return per-record gradients of weight (rows, columns, channels last) and bias.

    `given` is (records, 1, channels, height, width).
    """
    (down, across), (pad_down, pad_across), (dilate_down, dilate_across) = site.convolution  # type: ignore[misc]
    rows, columns = shape[2], shape[3]
    records, batch, channels = given.shape[:3]
    given, output = given.flatten(0, 1), output.flatten(0, 1).flatten(2)
    if pad_down or pad_across:
        given = functional.pad(given, (pad_across, pad_across, pad_down, pad_down))
    high = (given.shape[2] - dilate_down * (rows - 1) - 1) // down + 1
    wide = (given.shape[3] - dilate_across * (columns - 1) - 1) // across + 1
    given = given.permute(0, 2, 3, 1).contiguous()  # channels last: a patch is a few long runs of memory
    n, h, w, c = given.stride()
    patches = given.as_strided(
        (records * batch, high, wide, rows, columns, channels),
        (n, h * down, w * across, h * dilate_down, w * dilate_across, c),
    )
    weight = output.new_empty(records * batch, output.shape[1], channels * rows * columns)
    for i in range(0, records * batch, _BLOCK):  # a copy of a few patches stays in the processor's cache
        block = patches[i : i + _BLOCK]
        torch.bmm(output[i : i + _BLOCK], block.reshape(len(block), high * wide, -1), out=weight[i : i + _BLOCK])
    bias = output.sum(2)
    if batch > 1:
        weight, bias = (g.view(records, batch, *g.shape[1:]).sum(1) for g in (weight, bias))
    return weight, bias


def _channels_last(weight: Tensor) -> Tensor:
    _, channels, rows, columns = weight.shape
    turned = weight.permute(0, 2, 3, 1).contiguous()  # strides are set by hand: with one channel torch would not
    return turned.as_strided(weight.shape, (rows * columns * channels, 1, columns * channels, channels))


class _OtherwiseUsedError(Exception):
    """A tapped weight is not used as it was when the loss was watched."""


class _Watch(TorchFunctionMode):
    """Note where each parameter is used, and how much the loss computes."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.uses = names, Counter[str]()
        self.sites: list[Site] = []
        self.elements, self.nested = 0, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self.names:
                self.uses[self.names[id(leaf)]] += 1
            if isinstance(leaf, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(leaf):
                self.nested = True  # a derivative inside the loss uses weights out of sight
        if isinstance(out, Tensor):
            self.elements += out.numel()
            site = _read_call(func, args, kwargs)
            if site is not None and id(site[1]) in self.names and out.dim() > 1:
                _, weight, bias, convolution = site
                known = None if bias is None else self.names.get(id(bias))
                if bias is None or known is not None or not bias.requires_grad:
                    self.sites.append(Site(self.names[id(weight)], known, tuple(out.shape), out.dtype, convolution))
        return out


class _Tap(TorchFunctionMode):
    """Add a zero to each tapped layer's output, to differentiate by, and keep the layer's input."""

    def __init__(self, names: Mapping[int, str], taps: Parameters) -> None:
        super().__init__()
        self.names, self.taps = names, taps
        self.inputs: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        call = _read_call(func, args, kwargs)
        if call is None or id(call[1]) not in self.names:
            if any(id(leaf) in self.names for leaf in tree_leaves((args, kwargs))):
                raise _OtherwiseUsedError
            return out
        name = self.names[id(call[1])]
        if name in self.inputs or id(call[0]) in self.names:
            raise _OtherwiseUsedError
        self.inputs[name] = call[0].detach()
        return out + self.taps[name]


def _read_call(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None, Any] | None:
    """Return input, weight, bias and geometry if this is a linear or plain 2-D convolution call."""
    if kwargs or len(args) < 2:
        return None
    if func is functional.linear:
        return args[0], args[1], args[2] if len(args) > 2 else None, None
    if func is functional.conv2d:
        defaults: tuple[Any, ...] = (None, 1, 0, 1, 1)
        given, weight, bias, stride, padding, dilation, groups = (*args, *defaults[len(args) - 2 :])
        if groups == 1 and not isinstance(padding, str) and given.dim() == 4:
            pairs = ((v, v) if isinstance(v, int) else (v[0], v[-1]) for v in (stride, padding, dilation))
            return given, weight, bias, tuple(pairs)
    return None


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return what sums over a dtype are kept in: float32 or better."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _norm(tensor: Tensor) -> Tensor:
    """Return the rows' norms, summed in float64 over pieces short enough that float32 loses nothing that matters."""
    whole = tensor.shape[1] // _PIECE * _PIECE
    pieces = [torch.linalg.vector_norm(tensor[:, :whole].reshape(len(tensor), -1, _PIECE), dim=2)] if whole else []
    if whole < tensor.shape[1]:
        pieces.append(torch.linalg.vector_norm(tensor[:, whole:], dim=1, keepdim=True))
    norms: Tensor = torch.linalg.vector_norm(torch.cat(pieces, dim=1).double(), dim=1)
    small = norms < _SMALLEST
    if bool(small.any()):
        norms[small] = torch.linalg.vector_norm(tensor[small].double(), dim=1)
    return norms
