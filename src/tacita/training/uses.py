"""From calls of layers to the gradients of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tacita.training.layers import OtherwiseUsedError, Parameters, Use
from tacita.training.products import Convolution, Made, Part, Product, Rows, looked_up, wide

_FEW = 4096  # coordinates of a gradient that is made in any case
_MANY = 128  # positions from which a gradient is cheaper kept than multiplied twice


def parts_of(use: Use, gradient: Tensor, parameters: Parameters) -> list[Part]:
    """Return the gradients of a layer's parameters by one call of it.

    Args:
        use: The call.
        gradient: At its output, with the records along the first dimension.
        parameters: The parameters, for their shapes.
    """
    lowered, output = gradient.dtype, gradient.to(wide(gradient.dtype))
    given, settings = use.call.given, use.call.settings
    if use.call.kind == "embedding":
        return [] if use.weight is None else [_embedding(use.weight, given, output, settings)]
    given = given.to(lowered).to(output.dtype)  # autocast lowers what a layer is given, too
    if use.call.kind in ("layer norm", "group norm"):
        return _normalised(use, output, given)
    if use.call.kind == "convolution":
        return _convolved(use, output, given, parameters)
    output, given = output.flatten(1, -2), given.flatten(1, -2)
    parts: list[Part] = []
    if use.weight is not None:
        left, right = (output, given) if use.call.kind == "linear" else (given, output)
        parts.append(Product(use.weight, left, right))
    if use.bias is not None:
        parts.append(Made(use.bias, output.sum(1) if output.shape[1] > 1 else output[:, 0]))
    return parts


def _kept(coordinates: int, positions: int, factors: int) -> bool:
    return coordinates <= _FEW or (positions >= _MANY and coordinates <= 2 * factors)


def _embedding(name: str, index: Tensor, output: Tensor, padding: int) -> Rows:
    index, values = index.flatten(1), output.flatten(1, -2)
    if padding >= 0:
        values = values.masked_fill((index == padding)[:, :, None], 0.0)
    return Rows(name, *looked_up(index, values))


def _normalised(use: Use, output: Tensor, given: Tensor) -> list[Part]:
    if use.call.kind == "layer norm":
        shape, eps = use.call.settings
        plain = functional.layer_norm(given, shape, eps=eps)
        found = [t.reshape(len(t), -1, math.prod(shape)).sum(1) for t in (output * plain, output)]
    else:
        groups, eps = use.call.settings
        plain = functional.group_norm(given.flatten(0, 1), groups, eps=eps).view_as(given)
        found = [t.flatten(3).sum((1, 3)) for t in (output * plain, output)]
    return [Made(name, g) for name, g in zip((use.weight, use.bias), found, strict=True) if name is not None]


def _convolved(use: Use, output: Tensor, given: Tensor, parameters: Parameters) -> list[Part]:
    records, batch = output.shape[:2]
    output, given = output.flatten(0, 1), given.flatten(0, 1)
    parts: list[Part] = []
    if use.weight is not None:
        weight = parameters[use.weight]
        whole = Convolution(use.weight, output, given, weight, use.call.settings)
        kept = _kept(weight.numel(), output[0, 0].numel(), output[0].numel() + given[0].numel())
        parts.append(whole if batch == 1 and not kept else whole.made(batch))
    if use.bias is not None:
        parts.append(Made(use.bias, output.flatten(2).sum(2).view(records, batch, -1).sum(1)))
    return parts


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return one part for each parameter; what a parameter gets from several calls is one gradient."""
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    return tuple(made_if_small(_one(several)) for several in by_name.values())


def made_if_small(part: Part) -> Part:
    """Return a product's gradient itself where it is cheaper kept than multiplied twice."""
    if not isinstance(part, Product) or part.looked_up is not None or part.left.shape[1] == 1:
        return part
    (_, positions, high), wide = part.left.shape, part.right.shape[2]
    return Made(part.name, part.made()) if _kept(high * wide, positions, positions * (high + wide)) else part


def _one(parts: list[Part]) -> Part:
    """Return one part for several of the same parameter."""
    if len(parts) == 1:
        return parts[0]
    same = [part.made() if isinstance(part, Convolution) else part for part in parts]
    made = [part for part in same if isinstance(part, Made)]
    dense = [part for part in same if isinstance(part, Product)]
    rows = [part for part in same if isinstance(part, Rows)]
    if made:
        if len(made) < len(same):
            raise OtherwiseUsedError
        return Made(made[0].name, torch.stack([part.gradients for part in made]).sum(0), made[0].shape)
    met = rows[0] if len(rows) == 1 else None
    if len(rows) > 1:
        index, values = torch.cat([r.index for r in rows], 1), torch.cat([r.values for r in rows], 1)
        met = Rows(rows[0].name, *looked_up(index, values))
    if not dense:
        return met or parts[0]
    left, right = torch.cat([d.left for d in dense], 1), torch.cat([d.right for d in dense], 1)
    return Product(dense[0].name, left, right, met)
