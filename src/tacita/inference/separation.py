"""A Pyro model taken apart: a prior over what all records share, and one likelihood term for each record.

A fit runs the model on one record at a time, so a record's term cannot depend on another record unless the model keeps
something from call to call. Before a fit, and before anything is charged, the model is checked. It is called with
public stand-ins alone, of one, two and three rows, together and one at a time: their terms must add up to its own
density, and they must have the same density in the end as in the beginning. A model that fails is refused with the site
and its line, and so is one that makes no number of a stand-in alone and does of several, as where records are divided
by their own deviation. The model is called with no record, so none decides whether it is taken; records are only
compared with what it holds, which may be no copy of them all. The check compares what it sees: a model that computes
with several records only where they are unlike every stand-in is taken, and one that is written to start keeping
records later on is not found out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import Stopped, attempt, held
from tacita.inference import terms
from tacita.inference.terms import FreshDraws, Model, Run, Separated, Unknown, called, without_validation
from tacita.posterior.pyro_model import isolated_pyro_session

TOLERANCE = 1e-4  # relative: models compute in single precision
_PROBES = 3  # stand-ins that the model is tried on at a time
_WIDE = 1e4  # the largest number in a stand-in
_COMBINATIONS = 64  # of values of a record's discrete unknowns
_LIBRARIES = (*(str(Path(str(m.__file__)).parent) for m in (pyro, torch, terms)), contextlib.__file__, "<frozen")


@dataclass
class _Site:
    """What a trial run saw of one site."""

    fn: Any
    value: Tensor
    observed: bool
    frames: dict[str, int | None]  # the plates around it, and their dimensions; None for a loop
    line: str


class _Look(Messenger):  # type: ignore[misc]
    """Note every site, where it is written, and the plates around it."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, _Site] = {}
        self.plates: dict[str, tuple[int, str]] = {}  # size, which a record may decide, and line
        self.rows = 0  # how many records the model was called with
        self.last = ""

    def _pyro_sample(self, msg: Any) -> None:
        self.last = f"{'plate' if site_is_subsample(msg) else 'site'} {msg['name']!r} ({_line()})"

    def _pyro_post_sample(self, msg: Any) -> None:
        line = _line()
        for frame in msg["cond_indep_stack"]:
            self.plates.setdefault(frame.name, (frame.size, line))
        if site_is_subsample(msg):
            self.plates[msg["name"]] = (int(msg["fn"].size), line)
            if msg["fn"].size != len(msg["value"]):
                raise PrivacyError(
                    f"Plate {msg['name']!r} ({line}) subsamples the records itself. Leave that to the fit: write "
                    f"pyro.plate({msg['name']!r}, len(…)), and the sampling is private and accounted for."
                )
        elif not msg["infer"].get("_deterministic"):
            frames = {frame.name: frame.dim for frame in msg["cond_indep_stack"]}
            self.sites[msg["name"]] = _Site(msg["fn"], msg["value"], msg["is_observed"], frames, line)

    def _pyro_param(self, msg: Any) -> None:
        raise PrivacyError(
            f"Parameter {msg['name']!r} ({_line()}) is to be learned but has no prior, so it has no posterior. Make it "
            f"pyro.sample({msg['name']!r}, …)."
        )


def separate(model: Model, tensors: tuple[Tensor, ...], names: tuple[str, ...] = (), *, draws: int = 16) -> Separated:
    """Take a Pyro model apart into a prior and one term for each record.

    Args:
        model: An ordinary Pyro model of a batch of records; every observed site stands in one plate whose size is
            the number of records it is called with.
        tensors: The data, records along the first dimension; the model is called with none of them.
        names: The model's argument for each tensor; () to pass them by place.
        draws: Draws that average out a record's own continuous unknowns.

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
        public = _StandIns(model, names, tensors)
        public.require_unchanged()
        looks = [one.look for one in public.made]
        made = _described(model, names, public.example, looks, _plate(looks), draws)
        for one in public.full:
            with _forgiven() if one.wide else contextlib.nullcontext():
                _require_separable(made, one)
        _require_differentiable(made, public.full[0].batch)
        public.require_unchanged()
        _require_empty_store()
    return made


@contextlib.contextmanager
def _forgiven() -> Iterator[None]:
    """Look over stand-ins on which the model raises; not over what keeps records from being told apart."""
    try:
        yield
    except PrivacyError:
        raise
    except ValueError:
        pass


def _require_empty_store() -> None:
    kept = ", ".join(map(repr, pyro.get_param_store().keys()))
    if kept:
        raise PrivacyError(
            f"The model keeps something from call to call, in Pyro's parameter store: {kept}. Use public constants."
        )


def _require_arguments(model: Model, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):  # written in another language
        return
    try:
        called(signature.bind, names, tensors)
    except TypeError:
        has = ", ".join(map(repr, names)) if names else f"{len(tensors)} tensor{'s' * (len(tensors) > 1)}"
        takes = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"The model's arguments do not match the data: the model takes {takes}, and data has {has}."
        ) from None


def _require_not_held(model: Model, tensors: tuple[Tensor, ...]) -> None:
    """Refuse a model that refers to the records beside its arguments, as far as can be seen from outside."""
    for name, referred in _references(model).items():
        if any(_is(leaf, t) for leaf in tree_leaves(referred) for t in tensors):
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


def _is(held: Any, records: Tensor) -> bool:
    """Return whether this is the records' own memory, or a copy of them, perhaps in another precision."""
    compared = records.numel() > _PROBES  # a few numbers may be equal by chance
    if isinstance(held, Tensor) and held.layout == torch.strided:
        return held.untyped_storage().data_ptr() == records.untyped_storage().data_ptr() != 0 or (
            compared and held.shape == records.shape and torch.equal(held.to(records), records)
        )
    if isinstance(held, np.ndarray) and held.dtype.kind in "biuf":
        own = records.numpy()
        return np.may_share_memory(held, own) or (
            compared and held.shape == own.shape and np.array_equal(held.astype(own.dtype), own)
        )
    return False


@dataclass(frozen=True)
class _StandIn:
    """A public batch, values for all that the model samples, and what it made of both at first."""

    batch: tuple[Tensor, ...]
    values: dict[str, Tensor]
    look: _Look
    densities: dict[str, float]
    wide: bool  # of numbers so large that densities are compared with less precision


class _StandIns:
    """Public stand-ins for one, two and three records, which the model is called with instead of records.

    They are zeros, which it must run on, and numbers that differ from record to record, if it runs on those: fractions,
    on which a kept factor shows, tens, for models that are no number below, and a large number beside small ones, of
    either sign.
    """

    def __init__(self, model: Model, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
        self.model, self.names, self.made = model, names, list[_StandIn]()
        zeros = [tuple(t.new_zeros((rows, *t.shape[1:])) for t in tensors) for rows in range(1, _PROBES + 1)]
        self._add(zeros)
        self.example = tuple(t[0] for t in zeros[0])
        for largest, wholes in ((1.0, (1, 0)), (100.0, (50, 1, 0)), (_WIDE, (1000, 50, 1, 0)), (-_WIDE, (-1, 1, 0))):
            for whole in wholes:
                with _forgiven():
                    batch = tuple(_different(t, largest, whole) for t in zeros[-1])
                    self._add([batch, tuple(t[:1] for t in batch)], wide=abs(largest) >= _WIDE)
                    break

    @property
    def full(self) -> list[_StandIn]:
        """The stand-ins that are as many as are tried at a time."""
        return [one for one in self.made if len(one.batch[0]) == _PROBES]

    def _add(self, batches: list[tuple[Tensor, ...]], *, wide: bool = False) -> None:
        tracked = tree_map(lambda t: t.clone().requires_grad_(torch.is_floating_point(t)), batches)
        first = [_look(self.model, self.names, tree_map(torch.clone, batch)) for batch in tracked]
        _plate(first)
        for batch, look in zip(batches, first, strict=True):
            values = {name: site.value.detach() for name, site in look.sites.items() if not site.observed}
            again, densities = self._again(batch, values)
            self._require_untouched(again, densities, tracked)
            known = {name: float(density.detach()) for name, density in densities.items()}
            self.made.append(_StandIn(batch, values, again, known, wide))

    def _again(self, batch: tuple[Tensor, ...], values: dict[str, Tensor]) -> tuple[_Look, dict[str, Tensor]]:
        """Return the sites and their densities at these values."""
        run = Run(values, set(values), "", ())
        look = _look(self.model, self.names, tree_map(torch.clone, batch), run)
        return look, run.priors

    def _require_untouched(self, look: _Look, densities: dict[str, Tensor], tracked: Any) -> None:
        """Refuse if a density follows from what an earlier call was given."""
        inputs = {id(t) for t in tree_leaves(tracked)}
        for name, density in densities.items():
            if any(id(getattr(node, "variable", None)) in inputs for node in _nodes(density)):
                raise PrivacyError(
                    f"The model keeps something from call to call: site {name!r} ({look.sites[name].line}) uses what "
                    "an earlier call was given, as when the first records' mean is kept to centre all. Use public "
                    "constants."
                )

    def require_unchanged(self) -> None:
        """Refuse if a stand-in no longer has the densities that it had at first."""
        for one in self.made:
            try:
                with torch.no_grad():
                    look, after = self._again(one.batch, one.values)
            except ValueError as error:
                raise PrivacyError(
                    "The model keeps something from call to call: it ran on public stand-ins at first, and no "
                    f"longer does. {error}"
                ) from None
            for name in {**one.densities, **after}:
                both = name in one.densities and name in after
                if not both or not _unchanged(one.densities[name], float(after[name])):
                    line = (look if name in look.sites else one.look).sites[name].line
                    raise PrivacyError(
                        f"The model keeps something from call to call: site {name!r} ({line}) has another density on "
                        "the same public stand-ins after other calls than before, or draws random numbers outside "
                        "pyro.sample. Use public constants."
                    )


def _different(zeros: Tensor, largest: float, whole: int) -> Tensor:
    """Return different numbers up to the largest, in no order; of whole ones `whole` first, and then half of it.

    Of wide ones the first record's are of the largest's size, and the others' below one.
    """
    if torch.is_floating_point(zeros):
        size = 1.0 if abs(largest) >= _WIDE else largest
        numbers = torch.linspace(0.0, size, zeros.numel() + 2)[1:-1].reshape(zeros.shape).to(zeros).roll(1, 0)
        return torch.cat([numbers[:1] * (largest / size), numbers[1:]])
    return torch.cat([zeros[:1] + whole, zeros[1:] + whole // 2]).to(zeros)


def _nodes(made: Tensor) -> set[Any]:
    """Return the steps by which a tensor was computed from tracked ones."""
    seen, left = set(), [made.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left.extend(before for before, _ in node.next_functions)
    return seen


def _unchanged(before: float, after: float) -> bool:
    if math.isfinite(before) and math.isfinite(after):
        return abs(before - after) <= 1e-6 * (1.0 + abs(before))
    return before == after or (math.isnan(before) and math.isnan(after))


def _look(
    model: Model,
    names: tuple[str, ...],
    batch: tuple[Tensor, ...],
    run: Run | None = None,
) -> _Look:
    """Call the model with stand-ins and return the sites it has."""
    look = _Look()
    look.rows = len(batch[0])
    with _refusals(look, look.rows), without_validation(), look, run or contextlib.nullcontext():
        called(model, names, batch)
    return look


def _plate(looks: list[_Look]) -> str:
    """Return the plate over the records: the one whose size follows their number, with all observed sites inside."""
    lines = {name: line for look in looks for name, (_, line) in look.plates.items()}
    observed = [(name, site) for look in looks for name, site in look.sites.items() if site.observed]
    if not observed:
        raise PrivacyError("The model observes nothing: pass the records to a site, as obs=….")
    right = {name for name in lines if all(look.plates.get(name, (0,))[0] == look.rows for look in looks)}
    common = right
    for name, site in observed:
        around = ", ".join(f"{p!r} ({lines[p]})" for p in site.frames)
        if not right.intersection(site.frames):
            found = f"plate {around} has another size" if around else "there is no plate around it"
            raise PrivacyError(
                f"Site {name!r} ({site.line}) observes records outside a plate of their number ({found}), so they "
                "cannot be told apart. Write: with pyro.plate('records', len(…)): around it."
            )
        if not common.intersection(site.frames):
            raise PrivacyError(
                f"Site {name!r} ({site.line}) observes records in plate {around}, and other sites do in plate "
                f"{min(common)!r} ({lines[min(common)]}). Observe all of a record in one plate."
            )
        common = common.intersection(site.frames)
    return min(common)


def _described(
    model: Model, names: tuple[str, ...], example: tuple[Tensor, ...], looks: list[_Look], plate: str, draws: int
) -> Separated:
    """Return the model's parts as a stand-in record shows them; they must look the same in all other looks."""
    stand_in = looks[0]
    singles = [look for look in looks if look.rows == 1]
    shared, own = _latents(stand_in, plate)
    for look in looks:
        others = _latents(look, plate)
        if set(others[0]) != set(shared) or (look.rows == 1 and set(others[1]) != set(own)):
            odd = min(set(others[0]) ^ set(shared) or set(others[1]) ^ set(own))
            line = (look if odd in look.sites else stand_in).sites[odd].line
            raise PrivacyError(
                f"Site {odd!r} ({line}) is sampled with some records and not with others; every call must sample the "
                "same sites."
            )
    if not shared:
        raise PrivacyError(
            f"Every unknown of the model stands inside plate {plate!r} ({stand_in.plates[plate][1]}): there is nothing "
            "that records have in common to infer."
        )
    unknowns, start = [], 0
    for name, site in shared.items():
        unknowns.append(_unknown(name, site, [look.sites[name] for look in looks], start))
        start = unknowns[-1].place.stop
    discrete = tuple(
        (n, _support(n, s, [look.sites[n] for look in singles])) for n, s in own.items() if s.fn.support.is_discrete
    )
    if math.prod(len(values) for _, values in discrete) > _COMBINATIONS:
        raise ValueError(
            f"A record's own discrete unknowns in plate {plate!r} take more than {_COMBINATIONS} combinations of "
            f"values: {', '.join(f'{n!r} ({own[n].line})' for n, _ in discrete)}. Sum them out in the model."
        )
    drawn = tuple(n for n, s in own.items() if not s.fn.support.is_discrete)
    for name in drawn:
        _require_drawable(name, own[name])
    return Separated(model, tuple(unknowns), names, plate, discrete, drawn, draws, example)


def _latents(look: _Look, plate: str) -> tuple[dict[str, _Site], dict[str, _Site]]:
    """Return the unobserved sites that all records share, and those of a record's own."""
    latents = {name: site for name, site in look.sites.items() if not site.observed}
    return (
        {name: site for name, site in latents.items() if plate not in site.frames},
        {name: site for name, site in latents.items() if plate in site.frames},
    )


def _require_drawable(name: str, site: _Site) -> None:
    try:
        with FreshDraws(), _no_performance_warning():
            vmap(lambda _: site.fn.rsample(), randomness="different")(torch.zeros(2))
    except (RuntimeError, NotImplementedError):
        raise ValueError(
            f"Site {name!r} ({site.line}) is a record's own unknown with a {_kind(site.fn)} prior, whose draws "
            "cannot be differentiated for each record. Use another distribution for it."
        ) from None


def _unknown(name: str, site: _Site, others: list[_Site], start: int) -> Unknown:
    if site.fn.support.is_discrete:
        raise ValueError(
            f"Site {name!r} ({site.line}) is discrete and shared by all records; only continuous unknowns have a "
            "variational posterior. Sum it out in the model."
        )
    if not torch.is_floating_point(site.value):
        raise ValueError(f"Site {name!r} ({site.line}) is not real valued.")
    if site.value.numel() == 0:
        raise ValueError(f"Site {name!r} ({site.line}) has no numbers: its shape is {tuple(site.value.shape)}.")
    transform = biject_to(site.fn.support)
    free = transform.inv(site.value)
    trial = torch.linspace(-1.0, 1.0, max(1, free.numel())).reshape(free.shape).to(free)
    for other in others:
        if other.value.shape != site.value.shape or not torch.allclose(
            biject_to(other.fn.support)(trial), transform(trial)
        ):
            raise ValueError(
                f"The range of site {name!r} ({site.line}) changes from call to call, with the records or with other "
                "unknowns. Give it a fixed range."
            )
    place = slice(start, start + free.numel())
    return Unknown(name, tuple(site.value.shape), place, tuple(free.shape), transform, site.line)


def _support(name: str, site: _Site, others: list[_Site]) -> Tensor:
    vector = isinstance(site.fn, dist.Independent) and site.fn.reinterpreted_batch_ndims > 0
    if vector or math.prod(site.fn.batch_shape) > 1:
        plates = ", ".join(map(repr, site.frames))
        raise ValueError(
            f"Site {name!r} ({site.line}) is a vector of a record's own discrete unknowns (plates: {plates}), which "
            "cannot be summed out. Sum it out in the model, or give each its own site."
        )
    if not site.fn.has_enumerate_support:
        raise ValueError(
            f"Site {name!r} ({site.line}) is a record's own discrete unknown whose values cannot be listed "
            f"({_kind(site.fn)}). Sum it out in the model."
        )
    values = site.fn.enumerate_support(expand=False)
    if not all(torch.equal(other.fn.enumerate_support(expand=False), values) for other in others):
        raise ValueError(
            f"The values that site {name!r} ({site.line}) can take change with the records. Give it fixed ones."
        )
    return torch.as_tensor(values).reshape(len(values), *values.shape[len(site.fn.batch_shape) + 1 :])


def _require_separable(made: Separated, stand_in: _StandIn) -> None:
    """Refuse unless the density of a few stand-ins is the prior times one factor for each, and each factor its own.

    What is a number together must be one alone, and priors must be. Other densities that are not numbers are not
    compared.
    """
    generator, look, few = np.random.default_rng(5), stand_in.look, stand_in.batch
    own = [look.sites.get(name) for name in (*(n for n, _ in made.discrete), *made.drawn)]
    looped = any(site is None or site.frames[made.plate] is None for site in own)
    for _ in range(2):
        flat = torch.as_tensor(0.5 * generator.standard_normal(made.size), dtype=torch.get_default_dtype())
        values = {**made.values(flat), **{name: support[0] for name, support in made.discrete}}
        together, *singles = (
            _one(made, {**values, **({} if looped else _drawn(made, look, rows))}, tuple(t[rows] for t in few))
            for rows in (range(_PROBES), *([i] for i in range(_PROBES)))
        )
        for name, density in together.priors.items():
            if bool(torch.isnan(density)):
                raise ValueError(f"The density of site {name!r} ({look.sites[name].line}) is not a number.")
            if not all(_add_up([single.priors[name]], density) for single in singles):
                raise PrivacyError(
                    f"The prior of {name!r} ({look.sites[name].line}) changes with the records. A prior is fixed "
                    "before the data are seen: use public constants."
                )
        _require_numbers(made, look, singles, together)
        if not looped:  # a record's own sites in a loop have other names from record to record
            _require_sum(made, look, singles, together, 100.0 * TOLERANCE if stand_in.wide else TOLERANCE)


def _drawn(made: Separated, look: _Look, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return values of the records' own continuous sites: those of these rows when the model was looked at."""
    values = {}
    for name in made.drawn:
        site = look.sites[name]
        axis = site.value.dim() - site.fn.event_dim + int(site.frames[made.plate] or 0)
        values[name] = site.value.index_select(axis, torch.tensor(list(rows)))
    return values


def _require_numbers(made: Separated, look: _Look, singles: list[Run], together: Run) -> None:
    """Refuse if stand-ins have a density together and one of them has none alone, or the other way round."""
    alone = torch.stack([single.term for single in singles]).sum()  # infinite terms of both signs make no number
    if bool(torch.isnan(alone)) == bool(torch.isnan(together.term)):
        return
    lost = (n for single in singles for n, density in single.terms.items() if bool(torch.isnan(density)))
    name = next(lost, next(iter(together.terms)))
    raise PrivacyError(
        f"Records cannot be separated at site {name!r} ({look.sites[name].line}): inside plate {made.plate!r} a record "
        "has a density with others and none alone, or only alone, as when records are standardised by their own mean "
        "and deviation. Standardise them before the fit, with public constants."
    )


def _require_sum(made: Separated, look: _Look, singles: list[Run], together: Run, tolerance: float) -> None:
    same = all(single.terms.keys() == together.terms.keys() for single in singles)  # not so in a loop over a plate
    for name, density in together.terms.items():
        if same and not _add_up([single.terms[name] for single in singles], density, tolerance):
            raise PrivacyError(
                f"Records cannot be separated at site {name!r} ({look.sites[name].line}): inside plate {made.plate!r} "
                "a record's density changes with the other records, as when they are centred or scaled by their own "
                "mean. Use public constants."
            )
    if not _add_up([single.term for single in singles], together.term, tolerance):
        raise PrivacyError(
            f"Records cannot be separated: their terms in plate {made.plate!r} ({look.plates[made.plate][1]}) do not "
            "add up to the density of the whole. Use public constants inside it."
        )


def _one(made: Separated, values: Mapping[str, Tensor], batch: tuple[Tensor, ...]) -> Run:
    run = Run(values, {u.name for u in made.unknowns}, made.plate, ())
    with _refusals(_Look(), len(batch[0])), without_validation(), torch.no_grad(), run:
        called(made.model, made.names, batch)
    return run


def _require_differentiable(made: Separated, few: tuple[Tensor, ...]) -> None:
    flat = torch.zeros(made.size)
    with _refusals(_Look(), 1):
        vmap(grad(made.log_likelihood), in_dims=(None, 0), randomness="different")(flat, few)
        grad(made.log_prior)(flat)


@contextlib.contextmanager
def _no_performance_warning() -> Iterator[None]:
    """Say nothing of operations that run record by record."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def start_of(made: Separated) -> Tensor:
    """Return where a fit starts: the means of the priors, or the middle of the range where a mean is not finite."""
    start = torch.zeros(made.size)
    flat = start.clone()
    look = _Look()
    with isolated_pyro_session(), without_validation(), torch.no_grad():
        for u in made.unknowns:  # one after the other, as a prior may be built on those before it
            with look, Run(made.values(flat), {x.name for x in made.unknowns}, made.plate, made.drawn):
                called(made.model, made.names, tuple(t.unsqueeze(0) for t in made.example))
            try:
                free = u.transform.inv(look.sites[u.name].fn.mean.expand(u.shape)).reshape(-1)
            except (NotImplementedError, AttributeError, RuntimeError):
                continue
            if bool(torch.isfinite(free).all()) and float(free.abs().max()) < 1e6:
                flat[u.place] = free
    return flat


def _add_up(parts: list[Tensor], whole: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether the parts' sum is the whole, up to the round-off of its summands; NaN is not compared."""
    sums, total = [float(part) for part in parts], float(whole)
    found = sum(sums)
    if math.isnan(found) or math.isnan(total):
        return True
    room = tolerance * (1.0 + abs(total) + sum(map(abs, sums)))
    return found == total or (math.isfinite(room) and abs(found - total) <= room)


def _kind(fn: Any) -> str:
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return type(fn).__name__


def _line() -> str:
    """Return the file and line of the user's code that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


@contextlib.contextmanager
def _refusals(look: _Look, count: int) -> Iterator[None]:
    """Turn an error of the model into one line that says where, without its message, which may hold values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracked tensors that become numbers, or of a deviation of one record
            yield
    except (PrivacyError, Stopped):
        raise
    except BaseException as error:  # an exit, too, would tell of a record
        where, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(_LIBRARIES):
                where = f" at {Path(code.co_filename).name}, line {trace.tb_lineno}"
            trace = trace.tb_next
        last = f", after {look.last}" if look.last else ""
        plural = "s" * (count > 1)
        what = f"{count if plural else 'a'} stand-in record{plural} of zeros"
        raise ValueError(
            f"The Pyro model raised {type(error).__name__}{where}{last}, when called with {what}."
            f"{_hint(look, count, attempt(str, error) or '')} It must run on any number of records, one included, and "
            "on zeros of the same shapes: it is checked on these, as a check on records would tell of them."
        ) from None


def _hint(look: _Look, count: int, message: str) -> str:
    if "subsample_size" in message:
        return " A plate subsamples the records itself. Leave that to the fit: write pyro.plate(…, len(…))."
    if ".item()" in message or "data-dependent" in message:
        return " A record's value decides what is run: write it with torch.where instead of if."
    if any(words in message for words in ("inplace", "in-place", "the broadcast shape")):
        return " It changes a tensor in place, which has no per-record form: write it out of place."
    if any(words in message for words in ("can't be cast to the desired", "bool tensor")):
        return " Its distributions need real numbers: pass whole numbers and truth values as floats."
    fixed = [f"{name!r} ({line})" for name, (size, line) in look.plates.items() if size != count]
    return f" Plates that do not follow the number of records: {', '.join(fixed)}." if fixed else ""
