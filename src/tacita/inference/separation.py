"""A Pyro model taken apart: a prior over what all records share, and one likelihood term for each record.

A fit runs the model on one record at a time, so a record's term cannot depend on another record unless the model keeps
state between calls. The model is checked before a fit, and before anything is charged. It is called with public
stand-ins alone, of one, two and three rows, together and one at a time: their terms must add up to the density of all,
and the same stand-ins must have the same density at the end as at the beginning. A model that fails is refused with the
site and its line. So is a model whose density is NaN for a single stand-in but not for several, as when records are
divided by their standard deviation. The model is called with no record, so acceptance depends on none; records are only
compared with what the model refers to, which must not be a copy of all of them. The check covers what it observes: it
accepts a model that combines records only where they differ from every stand-in, and does not detect a model that is
written to start keeping records later.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import held
from tacita.inference.terms import FreshDraws, Model, Run, Separated, Tensors, Unknown, called, one_row
from tacita.inference.trials import PROBES, ModelError, Site, StandIn, StandIns, Trial, model_errors, record_plate
from tacita.posterior.pyro_model import isolated_pyro_session, unwrapped

_TOLERANCE = 1e-4  # relative: models compute in single precision
_COMBINATIONS = 64  # of values of a record's discrete unknowns


def separate(model: Model, tensors: Tensors, names: tuple[str, ...] = (), *, draws: int = 16) -> Separated:
    """Take a Pyro model apart into a prior and one term for each record.

    Args:
        model: An ordinary Pyro model of a batch of records; every observed site stands in one plate whose size is
            the number of records it is called with.
        tensors: The data, records along the first dimension; the model is called with none of them.
        names: The model's argument for each tensor; () to pass them by place.
        draws: Draws that average out a record's own continuous unknowns.

    Returns:
        The model as its prior and its records' terms.

    Raises:
        PrivacyError: If records cannot be separated; the message names the site, the plate and the line.
        ValueError: If the model fails, or holds what cannot be inferred.
    """
    if not callable(model):
        raise TypeError(f"model must be a Pyro model, a function of the records, got {type(model).__name__}.")
    _check.count("draws", draws, high=10_000)
    tensors = tuple(t.detach() for t in tensors)
    _require_arguments(model, names, tensors)
    _require_not_held(model, tensors)
    with isolated_pyro_session(), held():
        public = StandIns(model, names, tensors)
        public.require_unchanged()
        trials = [one.trial for one in public.stand_ins]
        separated = _describe(model, names, public.example, trials, record_plate(trials), draws)
        for one in public.full:
            with contextlib.suppress(*((ModelError,) if one.wide else ())):
                _require_separable(separated, one)
        with model_errors(Trial()):  # it must be differentiable, record by record
            flat = torch.zeros(separated.size)
            vmap(grad(separated.log_likelihood), in_dims=(None, 0), randomness="different")(flat, public.full[0].batch)
            grad(separated.log_prior)(flat)
        public.require_unchanged()
        kept = ", ".join(map(repr, pyro.get_param_store().keys()))
    if kept:
        raise PrivacyError(
            f"The model keeps something from call to call, in Pyro's parameter store: {kept}. Use public constants."
        )
    return separated


def start_of(separated: Separated) -> Tensor:
    """Return where a fit starts: the means of the priors, or the middle of the range where a mean is not finite."""
    flat, trial = torch.zeros(separated.size), Trial()
    with isolated_pyro_session(), torch.no_grad():
        for u in separated.unknowns:  # one after the other, as a prior may be built on those before it
            with trial:
                separated.run(separated.values(flat), one_row(separated.example), drawn=separated.drawn)
            try:
                free = u.transform.inv(trial.sites[u.name].fn.mean.expand(u.shape)).reshape(-1)
            except (NotImplementedError, AttributeError, RuntimeError):
                continue
            if bool(torch.isfinite(free).all()) and float(free.abs().max()) < 1e6:
                flat[u.place] = free
    return flat


def _require_arguments(model: Model, names: tuple[str, ...], tensors: Tensors) -> None:
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        called(signature.bind, names, tensors)
    except TypeError:
        has = ", ".join(map(repr, names)) if names else f"{len(tensors)} tensor{'s' * (len(tensors) > 1)}"
        takes = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"The model's arguments do not match the data: the model takes {takes}, and data has {has}."
        ) from None


def _require_not_held(model: Model, tensors: Tensors) -> None:
    """Refuse a model that refers to the records beside its arguments, as far as can be seen from outside."""
    for name, referred in _references(model).items():
        if any(_is_copy(leaf, t) for leaf in tree_leaves(referred) for t in tensors):
            raise PrivacyError(
                f"The model holds the records themselves, as {name!r}, so every record's term may depend on all of "
                "them: pass them as arguments only."
            )


def _references(model: Model) -> dict[str, Any]:
    """Return what a model refers to beside its arguments: attributes, defaults, and names from around it."""
    found: dict[str, Any] = {}
    if isinstance(model, torch.nn.Module):
        found = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        model = model.forward
    found.update(getattr(getattr(model, "__self__", model), "__dict__", {}))
    with contextlib.suppress(TypeError, ValueError):
        found.update({p.name: p.default for p in inspect.signature(model).parameters.values()})
    with contextlib.suppress(TypeError, ValueError):
        around = inspect.getclosurevars(inspect.unwrap(model.func if isinstance(model, functools.partial) else model))
        found.update({**around.nonlocals, **around.globals})
    return found


def _is_copy(held: Any, records: Tensor) -> bool:
    """Return whether this is the records' own memory, or a copy of them, perhaps in another precision."""
    compared = records.numel() > PROBES  # a few numbers may be equal by chance
    if isinstance(held, Tensor) and held.layout == torch.strided:
        return held.untyped_storage().data_ptr() == records.untyped_storage().data_ptr() != 0 or (
            compared and held.shape == records.shape and torch.equal(held.to(records), records)
        )
    if isinstance(held, np.ndarray) and held.dtype.kind in "biuf":
        array = records.numpy()
        return np.may_share_memory(held, array) or (
            compared and held.shape == array.shape and np.array_equal(held.astype(array.dtype), array)
        )
    return False


def _describe(
    model: Model, names: tuple[str, ...], example: Tensors, trials: list[Trial], plate: str, draws: int
) -> Separated:
    """Return the model's parts as a stand-in record shows them; they must be the same in all other trials."""
    stand_in = trials[0]
    singles = [trial for trial in trials if trial.rows == 1]
    shared, local = _latents(stand_in, plate)
    for trial in trials:
        others = _latents(trial, plate)
        if set(others[0]) != set(shared) or (trial.rows == 1 and set(others[1]) != set(local)):
            odd = min(set(others[0]) ^ set(shared) or set(others[1]) ^ set(local))
            where = (trial if odd in trial.sites else stand_in).sites[odd].where
            raise PrivacyError(
                f"Site {where} is sampled with some records and not with others; every call must sample the same sites."
            )
    if not shared:
        raise PrivacyError(
            f"Every unknown of the model stands inside plate {plate!r} ({stand_in.plates[plate][1]}): there is nothing "
            "that records have in common to infer."
        )
    unknowns, start = [], 0
    for name, site in shared.items():
        unknowns.append(_unknown(name, site, [trial.sites[name] for trial in trials], start))
        start = unknowns[-1].place.stop
    discrete = tuple(
        (n, _support(s, [trial.sites[n] for trial in singles])) for n, s in local.items() if s.fn.support.is_discrete
    )
    if math.prod(len(values) for _, values in discrete) > _COMBINATIONS:
        raise ValueError(
            f"A record's own discrete unknowns in plate {plate!r} take more than {_COMBINATIONS} combinations of "
            f"values: {', '.join(local[n].where for n, _ in discrete)}. Sum them out in the model."
        )
    drawn = {n: s for n, s in local.items() if not s.fn.support.is_discrete}
    for site in drawn.values():
        try:
            with FreshDraws(), warnings.catch_warnings(action="ignore"):  # of operations that run record by record
                vmap(lambda _, fn: fn.rsample(), in_dims=(0, None), randomness="different")(torch.zeros(2), site.fn)
        except (RuntimeError, NotImplementedError):
            raise ValueError(
                f"Site {site.where} is a record's own unknown with a {_kind(site)} prior, whose draws "
                "cannot be differentiated for each record. Use another distribution for it."
            ) from None
    return Separated(model, tuple(unknowns), names, plate, discrete, tuple(drawn), draws, example)


def _kind(site: Site) -> str:
    return type(unwrapped(site.fn)).__name__


def _latents(trial: Trial, plate: str) -> tuple[dict[str, Site], dict[str, Site]]:
    """Return the unobserved sites that all records share, and those of a record's own."""
    latents = {name: site for name, site in trial.sites.items() if not site.observed}
    return (
        {name: site for name, site in latents.items() if plate not in site.frames},
        {name: site for name, site in latents.items() if plate in site.frames},
    )


def _unknown(name: str, site: Site, others: list[Site], start: int) -> Unknown:
    if site.fn.support.is_discrete:
        raise ValueError(
            f"Site {site.where} is discrete and shared by all records; only continuous unknowns have a "
            "variational posterior. Sum it out in the model."
        )
    if not torch.is_floating_point(site.value):
        raise ValueError(f"Site {site.where} is not real valued.")
    if site.value.numel() == 0:
        raise ValueError(f"Site {site.where} has no numbers: its shape is {tuple(site.value.shape)}.")
    transform = biject_to(site.fn.support)
    free = transform.inv(site.value)
    points = torch.linspace(-1.0, 1.0, max(1, free.numel())).reshape(free.shape).to(free)
    for other in others:
        if other.value.shape != site.value.shape or not torch.allclose(
            biject_to(other.fn.support)(points), transform(points)
        ):
            raise ValueError(
                f"The range of site {site.where} changes from call to call, with the records or with other "
                "unknowns. Give it a fixed range."
            )
    place = slice(start, start + free.numel())
    return Unknown(name, tuple(site.value.shape), place, tuple(free.shape), transform)


def _support(site: Site, others: list[Site]) -> Tensor:
    vector = isinstance(site.fn, dist.Independent) and site.fn.reinterpreted_batch_ndims > 0
    if vector or math.prod(site.fn.batch_shape) > 1:
        plates = ", ".join(map(repr, site.frames))
        raise ValueError(
            f"Site {site.where} is a vector of a record's own discrete unknowns (plates: {plates}), which "
            "cannot be summed out. Sum it out in the model, or give each its own site."
        )
    if not site.fn.has_enumerate_support:
        raise ValueError(
            f"Site {site.where} is a record's own discrete unknown whose values cannot be listed "
            f"({_kind(site)}). Sum it out in the model."
        )
    values = site.fn.enumerate_support(expand=False)
    if not all(torch.equal(other.fn.enumerate_support(expand=False), values) for other in others):
        raise ValueError(f"The values that site {site.where} can take change with the records. Give it fixed ones.")
    return torch.as_tensor(values).reshape(len(values), *values.shape[len(site.fn.batch_shape) + 1 :])


def _require_separable(separated: Separated, stand_in: StandIn) -> None:
    """Refuse unless the density of a few stand-ins is the prior times one factor for each, and each factor its own.

    What is a number together must be one alone, and priors must be. Other densities that are not numbers are not
    compared.
    """
    generator, trial, few = np.random.default_rng(5), stand_in.trial, stand_in.batch
    local = [trial.sites.get(name) for name in (*(n for n, _ in separated.discrete), *separated.drawn)]
    looped = any(site is None or site.frames[separated.plate] is None for site in local)
    for _ in range(2):
        flat = torch.as_tensor(0.5 * generator.standard_normal(separated.size), dtype=torch.get_default_dtype())
        values = {**separated.values(flat), **{name: support[0] for name, support in separated.discrete}}
        together, *singles = (
            _run_on(
                separated, values if looped else values | _drawn(separated, trial, rows), tuple(t[rows] for t in few)
            )
            for rows in (range(PROBES), *([i] for i in range(PROBES)))
        )
        for name, density in together.priors.items():
            if bool(torch.isnan(density)):
                raise ModelError(f"The density of site {trial.sites[name].where} is not a number.")
            if not all(_add_up([single.priors[name]], density) for single in singles):
                raise PrivacyError(
                    f"The prior of {trial.sites[name].where} changes with the records. A prior is fixed "
                    "before the data are seen: use public constants."
                )
        _require_numbers(separated, trial, singles, together)
        if not looped:  # a record's own sites in a loop have other names from record to record
            _require_sum(separated, trial, singles, together, 100.0 * _TOLERANCE if stand_in.wide else _TOLERANCE)


def _drawn(separated: Separated, trial: Trial, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return values of the records' own continuous sites: those of these rows in the trial run."""
    values = {}
    for name in separated.drawn:
        site = trial.sites[name]
        axis = site.value.dim() - site.fn.event_dim + int(site.frames[separated.plate] or 0)
        values[name] = site.value.index_select(axis, torch.tensor(list(rows)))
    return values


def _require_numbers(separated: Separated, trial: Trial, singles: list[Run], together: Run) -> None:
    """Refuse if stand-ins have a density together and one of them has none alone, or the other way round."""
    alone = torch.stack([single.term for single in singles]).sum()  # infinite terms of both signs make no number
    if bool(torch.isnan(alone)) == bool(torch.isnan(together.term)):
        return
    lost = (n for single in singles for n, density in single.terms.items() if bool(torch.isnan(density)))
    name = next(lost, next(iter(together.terms)))
    raise PrivacyError(
        f"Records cannot be separated at site {trial.sites[name].where}: inside plate {separated.plate!r} a "
        "record has a density with others and none alone, or only alone, as when records are standardised by their own "
        "mean and deviation. Standardise them before the fit, with public constants."
    )


def _require_sum(separated: Separated, trial: Trial, singles: list[Run], together: Run, tolerance: float) -> None:
    same = all(single.terms.keys() == together.terms.keys() for single in singles)  # not so in a loop over a plate
    for name, density in together.terms.items():
        if same and not _add_up([single.terms[name] for single in singles], density, tolerance):
            raise PrivacyError(
                f"Records cannot be separated at site {trial.sites[name].where}: inside plate "
                f"{separated.plate!r} a record's density changes with the other records, as when they are centred or "
                "scaled by their own mean. Use public constants."
            )
    if not _add_up([single.term for single in singles], together.term, tolerance):
        raise PrivacyError(
            f"Records cannot be separated: their terms in plate {separated.plate!r} "
            f"({trial.plates[separated.plate][1]}) do not add up to the density of the whole. Use public "
            "constants inside it."
        )


def _run_on(separated: Separated, values: Mapping[str, Tensor], batch: Tensors) -> Run:
    with model_errors(Trial(len(batch[0]))), torch.no_grad():
        return separated.run(values, batch)


def _add_up(parts: list[Tensor], whole: Tensor, tolerance: float = _TOLERANCE) -> bool:
    """Return whether the parts' sum is the whole, up to the round-off of its summands; NaN is not compared."""
    sums, total = [float(part) for part in parts], float(whole)
    found = sum(sums)
    if math.isnan(found) or math.isnan(total):
        return True
    room = tolerance * (1.0 + abs(total) + sum(map(abs, sums)))
    return found == total or (math.isfinite(room) and abs(found - total) <= room)
