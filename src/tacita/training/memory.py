"""What a model, a loss or a dataset keeps from call to call: it would carry one record's values to others."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita._guard import attempt

_DEPTH = 8  # of attributes within attributes
_MOST = 1000  # items of a list that are looked at
_ELSEWHERE = ("_parameters", "_buffers")  # of a module; buffers are compared by value
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_NUMBERS = (float, int, complex, str, bytes, np.generic)  # compared by value
_PLAIN = (Tensor, np.ndarray, bytearray, type, types.ModuleType, *_NUMBERS, *_GENERATORS)
_SLOT = types.MemberDescriptorType
_LARGE = 1 << 26  # bytes of numbers from which their contents are not compared: they may be a dataset
_LISTS = (list, tuple, set, frozenset, deque)
_NAMED = (*_GENERATORS, Tensor, np.ndarray, bytearray, dict, *_LISTS, *_NUMBERS)  # of what code names in its module


def changed(runs: Iterable[Callable[[], object]], *roots: object) -> str | None:
    """Return the name of something that one of several runs changes; None if nothing does.

    What the code of functions and objects names in its module is compared, too. A cache that is filled at the first
    call stays the same afterwards, so run once before, on something else: what is kept of equal records is equal.
    """
    before = dict(_kept(roots))
    for run in runs:
        run()
        after = dict(_kept(roots))
        for name in {**before, **after}:
            if name not in before or name not in after or not _same(before[name], after[name]):
                return name
        before = after
    return None


def contents(value: Tensor | np.ndarray[Any, Any] | bytearray) -> int:
    """Return a checksum of numbers, which also sees what was changed past torch's count, as by `.data`."""
    if isinstance(value, bytearray):
        return zlib.crc32(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def generators(*roots: object) -> list[Any]:
    """Return the random generators that some objects hold, or that their code names in its module."""
    found = {id(value): value for _, value in _reached(roots, code=True) if isinstance(value, _GENERATORS)}
    return list(found.values())


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if one[0] is other[0]:
        return bool(one[1] == other[1])
    return isinstance(one[0], _NUMBERS) and type(one[0]) is type(other[0]) and bool(one[0] == other[0])


def _kept(roots: tuple[object, ...]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what can be reached from some objects by name: the object itself, and what marks its contents."""
    for name, value in _reached(roots, code=True):
        mark: Any = None
        with contextlib.suppress(RuntimeError, TypeError, ValueError):  # tensors that only a transform knows, objects
            mark = value._version if isinstance(value, Tensor) else None
            if (isinstance(value, Tensor | np.ndarray) and value.nbytes < _LARGE) or isinstance(value, bytearray):
                mark = mark, contents(value)
        if not isinstance(value, _GENERATORS):  # they draw
            yield name, (value, mark)


def _reached(roots: tuple[object, ...], *, code: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the plain values, tensors and generators that can be reached from some objects, by name.

    Args:
        roots: The objects.
        code: Whether to look at what the objects' code names in its module, too.
    """
    seen: dict[int, int] = {}

    def walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
        if value is None or isinstance(value, _PLAIN):
            yield name, value
            return
        if depth <= seen.get(id(value), 0):
            return
        seen[id(value)] = depth
        parts = attempt(_parts, value)
        if parts is None:  # nothing is known of it but which it is
            yield name, value
        for key, part in [*(parts or []), *((attempt(_named, value) or []) if code else [])]:
            layer = isinstance(value, nn.Module) and isinstance(part, nn.Module)  # however deep a model is
            yield from walk(part, f"{name}.{key}" if name else key, depth - (not layer))

    for root in roots:
        yield from walk(root, "", _DEPTH)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what an object holds, by name; None if it does not say."""
    if isinstance(value, nn.Module):
        own = {key: part for key, part in vars(value).items() if key not in (*_ELSEWHERE, "_modules")}
        layers = [(k, m) for k, m in value._modules.items() if m is not None]
        return [*layers, *own.items()]  # a layer is named by its place, wherever else it is
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in list(value.items())[:_MOST]]
    if isinstance(value, _LISTS):
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
    kinds = type(value).__mro__
    slots = [name for kind in kinds for name, part in vars(kind).items() if isinstance(part, _SLOT)]
    held = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return [*held, *vars(value).items()] if hasattr(value, "__dict__") else held or None


def _named(value: Any) -> list[tuple[str, Any]]:
    """Return what can hold something of what a function names in its module, or an object's class and its methods."""
    own = isinstance(value, types.FunctionType)
    code: Any = value if own else type(value)
    named = [(name, module, module.get(name)) for name, module in _globals(code)]
    near = [(name, part) for name, module, part in named if isinstance(part, _NAMED) or _beside(part, module)]
    shared = [] if own else [part for kind in _kinds(type(value)) for part in vars(kind).items()]
    return [*near, *((name, part) for name, part in shared if isinstance(part, _NAMED))]


def _kinds(kind: type) -> list[type]:
    return [kind for kind in kind.__mro__ if kind.__module__.partition(".")[0] not in ("builtins", "torch")]


@functools.lru_cache(maxsize=1024)
def _globals(code: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the names in the code of a function, or of a class's methods, and the module where they are looked up."""
    calls: list[Any] = [code]
    if isinstance(code, type):
        parts = [part for kind in _kinds(code) for part in vars(kind).values()]
        calls = [part.fget if isinstance(part, property) else part for part in parts]
        calls = [part.__func__ if isinstance(part, staticmethod | classmethod) else part for part in calls]
    inside = [attempt(inspect.unwrap, call) for call in calls if isinstance(call, types.FunctionType)]
    functions = [f for f in (*calls, *inside) if isinstance(f, types.FunctionType)]
    places = ((name, f.__globals__) for f in functions for name in _names(f.__code__))
    return list({(name, id(module)): (name, module) for name, module in places}.values())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _beside(part: Any, module: Any) -> bool:
    """Return whether this is a function of a module, given as what it names."""
    return isinstance(part, types.FunctionType) and part.__globals__ is module
