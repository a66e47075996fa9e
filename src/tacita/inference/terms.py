"""What a separated model computes: its prior, and one record's likelihood at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

Model = Callable[..., Any]
Tensors = tuple[Tensor, ...]  # the model's arguments, records along the first dimension


@dataclass(frozen=True)
class Unknown:
    """One site that all records share, and its place among the flat, unconstrained unknowns."""

    name: str
    shape: tuple[int, ...]
    place: slice
    free_shape: tuple[int, ...]  # of its unconstrained value
    transform: Any


@dataclass(frozen=True)
class Separated:
    """A model as its prior and its records' terms.

    Attributes:
        model: The Pyro model.
        unknowns: The sites that all records share, in the order of the flat vector.
        names: The model's argument of each tensor of a record, or () for arguments by place.
        plate: The name of the plate over the records.
        discrete: A record's own discrete sites, and their values; summed out exactly.
        drawn: A record's own continuous sites; averaged out over draws from their prior.
        draws: How many draws.
        example: A public stand-in for a record: zeros of the same shapes.
    """

    model: Model
    unknowns: tuple[Unknown, ...]
    names: tuple[str, ...]
    plate: str
    discrete: tuple[tuple[str, Tensor], ...]
    drawn: tuple[str, ...]
    draws: int
    example: Tensors

    @property
    def size(self) -> int:
        """How many numbers the unknowns take, unconstrained."""
        return int(self.unknowns[-1].place.stop)

    def values(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the value of every site from the flat, unconstrained vector; leading dimensions are kept."""
        lead = flat.shape[:-1]
        return {u.name: u.transform(flat[..., u.place].reshape((*lead, *u.free_shape))) for u in self.unknowns}

    def log_prior(self, flat: Tensor) -> Tensor:
        """Return the log density of the unknowns, unconstrained, at one flat vector. Looks at no record."""
        run = self.run(self.values(flat), one_row(self.example), drawn=self.drawn, terms=False)
        total = torch.stack(list(run.priors.values())).sum()
        for u in self.unknowns:
            free = flat[u.place].reshape(u.free_shape)
            total = total + u.transform.log_abs_det_jacobian(free, u.transform(free)).sum()
        return total

    def log_likelihood(self, flat: Tensor, record: Tensors) -> Tensor:
        """Return one record's term: its log density given the unknowns, its own sites summed or averaged out.

        Draws of a record's own continuous sites make it a lower bound on average, tighter with more draws.
        """
        values = self.values(flat)
        if not self.drawn:
            return self._summed(values, record)
        terms = vmap(lambda _: self._summed(values, record), randomness="different")(flat.new_zeros(self.draws))
        return torch.logsumexp(terms, 0) - math.log(self.draws)

    def _summed(self, values: Mapping[str, Tensor], record: Tensors) -> Tensor:
        sites, batch = [name for name, _ in self.discrete], one_row(record)
        terms = [
            self.run({**values, **dict(zip(sites, chosen, strict=True))}, batch, drawn=self.drawn, priors=False).term
            for chosen in product(*(support for _, support in self.discrete))
        ]
        return terms[0] if len(terms) == 1 else torch.logsumexp(torch.stack(terms), 0)

    def run(self, values: Mapping[str, Tensor], batch: Tensors, *, drawn: tuple[str, ...] = (), **only: bool) -> Run:
        """Call the model with a batch, some sites fixed.

        Args:
            values: Of sites, by name.
            batch: Records, along the first dimension.
            drawn: Sites whose densities are left out, as their draws are averaged over.
            only: `priors=False` or `terms=False`, to leave one of the two out.

        Returns:
            The densities of the sites.
        """
        run = Run(values, {u.name for u in self.unknowns}, self.plate, drawn, **only)
        with without_validation(), FreshDraws() if drawn else contextlib.nullcontext(), run:
            called(self.model, self.names, batch)
        return run


def one_row(record: Tensors) -> Tensors:
    """Return a record as a batch of one."""
    return tuple(t.unsqueeze(0) for t in record)


def called(model: Model, names: tuple[str, ...], tensors: Tensors) -> Any:
    """Call a model with a batch of records.

    Args:
        model: The Pyro model.
        names: Its argument for each tensor; () to pass them by place.
        tensors: The records, along the first dimension.

    Returns:
        What the model returns.
    """
    return model(**dict(zip(names, tensors, strict=True))) if names else model(*tensors)


@contextlib.contextmanager
def without_validation() -> Iterator[None]:
    """Disable Pyro's checks of values, which cannot be vectorised over records and print values."""
    before = torch.distributions.Distribution._validate_args  # PyTorch's setting, which Pyro does not restore
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


class Run(Messenger):  # type: ignore[misc]
    """Fix the shared sites, and add up the prior's and the record's terms, or only one of the two."""

    def __init__(
        self,
        values: Mapping[str, Tensor],
        shared: set[str],
        plate: str,
        drawn: tuple[str, ...],
        *,
        priors: bool = True,
        terms: bool = True,
    ) -> None:
        super().__init__()
        self.values, self.shared, self.plate, self.drawn = values, shared, plate, drawn
        self.wanted = {False: priors, True: terms}
        self.priors: dict[str, Tensor] = {}
        self.terms: dict[str, Tensor] = {}

    @property
    def term(self) -> Tensor:
        """The record's log density."""
        return torch.stack(list(self.terms.values())).sum()

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values:
            value = self.values[msg["name"]]
            msg["value"] = value if msg["name"] in self.shared else value.expand(msg["fn"].shape())
            msg["done"] = True

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) or msg["infer"].get("_deterministic") or msg["name"] in self.drawn:
            return
        local = any(frame.name == self.plate for frame in msg["cond_indep_stack"])
        if self.wanted[local]:
            density = scale_and_mask(msg["fn"].log_prob(msg["value"]), msg["scale"], msg["mask"]).sum()
            (self.terms if local else self.priors)[msg["name"]] = density


class FreshDraws(TorchFunctionMode):
    """Replace the in-place draws of distributions by out-of-place ones, which can be vectorised over records."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_ and len(args) == 1 and not kwargs:
            return torch.randn(args[0].shape, dtype=args[0].dtype, device=args[0].device)
        if func is Tensor.exponential_ and len(args) == 1 and not kwargs:
            return -torch.log1p(-torch.rand(args[0].shape, dtype=args[0].dtype, device=args[0].device))
        if func is Tensor.uniform_ and len(args) == 3 and not kwargs:
            low, high = args[1:]
            return low + (high - low) * torch.rand(args[0].shape, dtype=args[0].dtype, device=args[0].device)
        return func(*args, **(kwargs or {}))
