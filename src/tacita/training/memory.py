"""What a model, a loss or a dataset keeps from call to call: it would carry one record's values to others."""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_DEPTH = 8  # of attributes within attributes
_MOST = 1000  # items of a list that are looked at
_ELSEWHERE = ("_parameters", "_buffers")  # of a module; buffers are compared by value
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_PLAIN = (Tensor, float, int, str, bytes, type, types.ModuleType, *_GENERATORS)


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


def generators(*roots: object) -> list[Any]:
    """Return the random generators that some objects hold, or that their own code names in its module.

    Those that only a function called by such code names are not found.
    """
    found = {id(value): value for _, value in _reached(roots, code=True) if isinstance(value, _GENERATORS)}
    return list(found.values())


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if isinstance(one[0], float | int | str | bytes):
        return type(one[0]) is type(other[0]) and bool(one[0] == other[0])
    return one[0] is other[0] and one[1] == other[1]


def _kept(roots: tuple[object, ...]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what can be reached from some objects by name: the object itself, and a tensor's count of changes."""
    for name, value in _reached(roots):
        version = 0
        if isinstance(value, Tensor):
            with contextlib.suppress(RuntimeError):  # of a tensor that only a transform knows
                version = value._version
        if not isinstance(value, _GENERATORS):  # they draw
            yield name, (value, version)


def _reached(roots: tuple[object, ...], *, code: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the plain values, tensors and generators that can be reached from some objects, by name.

    Args:
        roots: The objects.
        code: Whether to look at what the objects' code names in its module, too.
    """
    seen: set[int] = set()

    def walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
        if value is None or isinstance(value, _PLAIN):
            yield name, value
            return
        if id(value) in seen or depth == 0:
            return
        seen.add(id(value))
        for key, part in [*_parts(value), *(_named(value) if code else [])]:
            yield from walk(part, f"{name}.{key}" if name else key, depth - 1)

    for root in roots:
        yield from walk(root, "", _DEPTH)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        own = {key: part for key, part in vars(value).items() if key not in (*_ELSEWHERE, "_modules")}
        layers = [(k, m) for k, m in value._modules.items() if m is not None]
        return [*layers, *own.items()]  # a layer is named by its place, wherever else it is
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
    if isinstance(value, torch.optim.Optimizer):
        return []  # what released gradients moved
    return list(vars(value).items()) if hasattr(value, "__dict__") else []


def _named(value: Any) -> list[tuple[str, Any]]:
    """Return the generators that a function, or the methods of an object's class, name in their module."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ != "builtins"]
    code = [value, *(part for kind in kinds for part in vars(kind).values())]
    functions = [part for part in code if isinstance(part, types.FunctionType)]
    named = [(name, part.__globals__.get(name)) for part in functions for name in part.__code__.co_names]
    return [(name, part) for name, part in named if isinstance(part, _GENERATORS)]
