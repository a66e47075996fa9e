"""What a model or a loss keeps from call to call: such a thing would carry one record's values to others."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 8  # of attributes within attributes
_MOST = 1000  # items of a list that are looked at
_ELSEWHERE = ("_parameters", "_buffers")  # of a module; buffers are compared by value


def changed(run: Callable[[], object], *roots: object) -> str | None:
    """Return the name of something that differs after another run; None if nothing does.

    A cache that is filled at the first call stays the same afterwards, so call `run` once before.
    """
    before = dict(_kept(roots))
    run()
    after = dict(_kept(roots))
    for name in {**before, **after}:
        if name not in before or name not in after or not _same(before[name], after[name]):
            return name
    return None


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if isinstance(one[0], float | int | str | bytes):
        return type(one[0]) is type(other[0]) and bool(one[0] == other[0])
    return one[0] is other[0] and one[1] == other[1]


def _kept(roots: tuple[object, ...]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what can be reached from some objects by name: the object itself, and a tensor's count of changes."""
    seen: set[int] = set()

    def walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, tuple[Any, Any]]]:
        if isinstance(value, Tensor):
            try:
                yield name, (value, value._version)
            except RuntimeError:  # of a tensor that only a transform knows
                yield name, (value, 0)
            return
        if value is None or isinstance(value, float | int | str | bytes | type | types.ModuleType):
            yield name, (value, 0)
            return
        if id(value) in seen or depth == 0:
            return
        seen.add(id(value))
        for key, part in _parts(value):
            yield from walk(part, f"{name}.{key}" if name else key, depth - 1)

    for root in roots:
        yield from walk(root, "", _DEPTH)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        own = {key: part for key, part in vars(value).items() if key not in (*_ELSEWHERE, "_modules")}
        return [*own.items(), *((k, m) for k, m in value._modules.items() if m is not None)]
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in list(value.items())[:_MOST]]
    if isinstance(value, list | tuple | set | frozenset):
        return [(str(i), v) for i, v in enumerate(list(value)[:_MOST])] + [("length", len(value))]
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("func", value.__func__)]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        filled = [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]
        return [*filled, *vars(value).items()]
    if isinstance(value, torch.Generator | torch.optim.Optimizer):
        return []  # draws, and what released gradients moved
    return list(vars(value).items()) if hasattr(value, "__dict__") else []
