"""How a loss can be differentiated, found out on made-up records before any real one is used."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tacita._check import PrivacyError
from tacita._guard import attempt, held
from tacita.training.chunks import Chunk, Way, differentiated, out_of_memory
from tacita.training.layers import Loss, Parameters, watched
from tacita.training.memory import generators
from tacita.training.products import wide
from tacita.training.randomness import fresh_draws, standing
from tacita.training.reading import Marked

_TRIED = 16  # records, where a loss does not run on made-up ones
_COMPARED = 3  # made-up records on which two ways are compared
_LOST = 0.05  # of a parameter's gradient: more than the round-off of bfloat16, less than what a wrong rule loses
_ROUNDED = 0.01  # of the largest one's, for parameters whose gradient is round-off
_NOTHING = 1e-6  # for records whose whole gradient is
_SEEN: WeakKeyDictionary[Loss, dict[Any, tuple[Way, int]]] = WeakKeyDictionary()


def tried(loss: Loss, parameters: Parameters, records: Any) -> tuple[Way, int]:
    """Return how a loss is differentiated, and a guess at the bytes that one record takes.

    This is found out once for each loss, set of parameters and shape of record, on a record of zeros, or on one of ones
    if zeros do not do. So neither whether a loss works at all nor how it is run depends on what records hold. Only
    where it runs on neither are a few records tried in their place.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        records: Along the first dimension.

    Raises:
        Exception: What the loss raises on zeros, if it runs on nothing that was tried.
        PrivacyError: If the loss changes its parameters.
    """
    try:
        known = _SEEN.setdefault(loss, {})
    except TypeError:  # a loss that cannot be remembered
        known = {}
    key = (tuple(parameters), *((leaf.shape[1:], leaf.dtype) for leaf in tree_leaves(records)))
    if key not in known:
        first = tree_map(lambda t: t[:1], records)
        try:
            known[key] = _found(loss, parameters, _readable(tree_map(torch.zeros_like, first)))
        except PrivacyError:
            raise
        except Exception:
            with held():
                other = next(filter(None, _others(loss, parameters, records)), None)
            if other is None:
                raise
            known[key] = other
    return known[key]


def tried_on_made_up(loss: Loss, parameters: Parameters, records: Any) -> tuple[Way, int]:
    """Return what `tried` does, found out without any real record.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        records: Along the first dimension; only their form counts.

    Raises:
        PrivacyError: If the loss runs neither on zeros nor on ones.
    """
    try:
        return _found(loss, parameters, _readable(tree_map(lambda t: torch.zeros_like(t[:1]), records)))
    except PrivacyError:
        raise
    except Exception as error:
        ones = attempt(_found, loss, parameters, tree_map(lambda t: torch.ones_like(t[:1]), records))
        if ones is None:
            raise PrivacyError(
                "noise='exact' needs a loss that runs on a record of zeros, or of ones: how records are computed must "
                f"not depend on any of them. {type(error).__name__}: {error}"
            ) from None
        return ones


def _others(loss: Loss, parameters: Parameters, records: Any) -> Iterator[tuple[Way, int] | None]:
    yield attempt(_found, loss, parameters, tree_map(lambda t: torch.ones_like(t[:1]), records))
    for row in range(min(len(tree_leaves(records)[0]), _TRIED)):
        yield attempt(_found, loss, parameters, tree_map(lambda t, row=row: t[row : row + 1], records))


def _found(loss: Loss, parameters: Parameters, one: Any) -> tuple[Way, int]:
    """Return the first way that works on one record, from the fastest to the surest."""
    own = generators(loss)
    with unchanged(loss, parameters):
        before = standing(own)
        seen = watched(loss, parameters, one)
        ways = [Way(seen.tapped), Way(), Way(alone=True)]
        if seen.convolutions:
            ways.insert(0, Way(seen.tapped, channels_last=True))
        why: Exception | None = None
        if standing(own) != before:
            why, ways = RuntimeError("it draws from numpy's or Python's generators"), ways[-1:]
        for way in ways[:-1]:
            try:
                chunk = differentiated(loss, parameters, one, way)
                chunk.norms()
            except Exception as error:
                why = why or error
                continue
            if unfit := _unfit(loss, parameters, one, way):
                why = why or unfit
                continue
            _require_gradient(chunk)
            _warn_of_noise_alone(loss, parameters, one, chunk)
            return way, seen.size
        chunk = differentiated(loss, parameters, one, ways[-1])
        _require_gradient(chunk)
        _warn_of_noise_alone(loss, parameters, one, chunk)
        began = time.perf_counter()
        differentiated(loss, parameters, one, ways[-1]).norms()
        seconds = time.perf_counter() - began
    warnings.warn(
        f"The records run one after the other, at about {1e3 * seconds:.2g} ms each: gradients are exact, but a step "
        f"is slower than with all records at once, which torch.func.vmap cannot do here ({_first_line(why)}).",
        stacklevel=2,
    )
    return ways[-1], seen.size


def _unfit(loss: Loss, parameters: Parameters, one: Any, way: Way) -> Exception | None:
    """Return why a way does not do for several records at once, on made-up ones, or None if it does.

    Some operations run for a single record alone. Some of the rules of `vmap` are wrong: they lose a gradient without
    an error, so gradients are compared with those of ordinary backward passes. A loss that draws cannot be compared,
    and is not; nor are records whose gradient is not finite.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        one: A record on which the loss runs.
        way: How.
    """
    with fresh_draws():
        for varied in (True, False):
            records = made_up(one, varied=varied)
            alone = [tree_map(lambda t, row=row: t[row : row + 1], records) for row in range(_COMPARED)]
            try:
                for part in alone:
                    differentiated(loss, parameters, part, Way(alone=True))
            except Exception:  # mixed whole numbers may be no record that the loss takes
                continue
            try:
                together = differentiated(loss, parameters, records, way)
            except Exception as error:
                return None if out_of_memory(error) else error
            if any(_differs(loss, parameters, part, together, row) for row, part in enumerate(alone)):
                return ArithmeticError("its gradients are not those of an ordinary backward pass")
            break
    return None


def made_up(one: Any, *, varied: bool, count: int = _COMPARED) -> Any:
    """Return so many records like one: noise in place of reals; where varied, zeros mixed with ones for the others."""
    rng = np.random.default_rng(0)

    def made(t: Tensor) -> Tensor:
        if t.is_floating_point():
            return torch.as_tensor(rng.normal(size=(count, *t.shape[1:]))).to(t)
        kept = torch.as_tensor(rng.random((count, *t.shape[1:])) < 0.5).to(t.device)
        kept[0] = True  # the rules for the first record may be right alone
        return torch.where(kept, t, t.logical_not().to(t.dtype)) if varied else t.expand(kept.shape).clone()

    return _readable(tree_map(made, one))


def _readable(records: Any) -> Any:
    """Return made-up records with none of them marked as broken, whose loss is nothing."""
    return records._replace(readable=torch.ones_like(records.readable)) if isinstance(records, Marked) else records


def _differs(loss: Loss, parameters: Parameters, part: Any, together: Chunk, row: int) -> bool:
    """Return whether a record's gradient among others is another than alone, where it is the same twice."""

    def alone() -> Parameters:
        return _gradient(differentiated(loss, parameters, part, Way(alone=True)), 0, parameters)

    wanted = alone()
    return _apart(_gradient(together, row, parameters), wanted) and not _apart(alone(), wanted)


def _warn_of_noise_alone(loss: Loss, parameters: Parameters, one: Any, chunk: Chunk) -> None:
    """Warn of a loss without a gradient for a record alone, such as one that compares records.

    Args:
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        one: A record on which the loss runs.
        chunk: Its gradient. Others are tried where it is zero.
    """
    if bool((chunk.norms() != 0.0).any()):
        return
    if not any(leaf.is_floating_point() for leaf in tree_leaves(one)):  # rows 0 and 1 of a table may well have none
        return
    with fresh_draws():
        for row in range(_COMPARED):
            part = tree_map(lambda t, row=row: t[row : row + 1], made_up(one, varied=True))
            try:
                found = differentiated(loss, parameters, part, Way(alone=True))
            except Exception:  # no record that the loss takes
                continue
            if bool((found.norms() != 0.0).any()):
                return
    warnings.warn(
        "The gradient is exactly zero on every made-up record, so training may be by noise alone. A loss that compares "
        "the records of a batch with each other, such as a contrastive one, is constant for a record alone: put what a "
        "record is compared with into the record.",
        stacklevel=2,
    )


def _gradient(chunk: Chunk, row: int, parameters: Parameters) -> Parameters:
    sums = {name: torch.zeros_like(p, dtype=wide(p.dtype)) for name, p in parameters.items()}
    only = torch.arange(len(chunk.losses), device=chunk.losses.device) == row
    chunk.add_to(sums, only.double(), ~only)
    return sums


def _apart(found: Parameters, wanted: Parameters) -> bool:
    """Return whether two gradients of the same record, both finite, are further apart than round-off explains."""
    pairs = [(found[name], g) for name, g in wanted.items() if g.numel()]
    if not all(bool(g.isfinite().all()) for pair in pairs for g in pair):
        return False
    most = [float(g.abs().max()) for _, g in pairs]
    least = max(_ROUNDED * max(most), _NOTHING)
    return any(float((f - g).abs().max()) > max(_LOST * high, least) for (f, g), high in zip(pairs, most, strict=True))


@contextmanager
def unchanged(loss: Loss, parameters: Parameters) -> Iterator[None]:
    """Refuse a loss that changes parameters, trained or not, or buffers as it runs: they would carry records away.

    Args:
        loss: Which may have its model as `model`.
        parameters: What it is differentiated by.

    Raises:
        PrivacyError: If it does.
    """
    model = getattr(loss, "model", None)

    def marks() -> dict[str, tuple[int, int]]:
        own = {**dict(model.named_buffers()), **dict(model.named_parameters())} if isinstance(model, nn.Module) else {}
        return {name: (id(t), t._version) for name, t in {**own, **parameters}.items()}

    before = marks()
    try:
        yield
    finally:
        now = marks()
        name = next((n for n in {**before, **now} if before.get(n) != now.get(n)), None)
        if name is not None:
            buffer = isinstance(model, nn.Module) and name in dict(model.named_buffers())
            raise changing(name, buffer=buffer) from None


def changing(name: str, *, buffer: bool) -> PrivacyError:
    """Return the error of a parameter or a buffer that changes as the model runs."""
    return PrivacyError(
        f"{'Buffer' if buffer else 'Parameter'} {name!r} changes as the model runs, so it would remember records, "
        "without noise. Remove it, freeze it, or write the operation out of place."
    )


def _require_gradient(chunk: Chunk) -> None:
    if not chunk.parts:
        raise ValueError(
            "The loss does not depend on any parameter that is trained. Was it detached, computed under no_grad, or by "
            "frozen layers alone?"
        )


def _first_line(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0] if error is not None else ""
