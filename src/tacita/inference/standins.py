"""Public stand-ins for records, with which a model is tried before it sees a record."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tacita._check import PrivacyError
from tacita.inference.sites import Trial, record_plate, trial_run
from tacita.inference.terms import Model, Run, Tensors

PROBES = 3  # stand-ins that the model is tried on at a time
WIDE = 1e4  # the largest number in a stand-in


@contextlib.contextmanager
def tolerate_errors() -> Iterator[None]:
    """Skip stand-ins on which the model raises; a model whose records cannot be separated is still refused."""
    try:
        yield
    except PrivacyError:
        raise
    except ValueError:
        pass


@dataclass(frozen=True)
class StandIn:
    """A public batch, values for all sampled sites, and the sites and densities of the first run on them."""

    batch: Tensors
    values: dict[str, Tensor]
    trial: Trial
    densities: dict[str, float]
    wide: bool  # of numbers so large that densities are compared with less precision


class StandIns:
    """Public stand-ins for one, two and three records, which the model is called with instead of records.

    They are zeros, on which it must run, and numbers that differ from record to record, if it runs on those: fractions,
    which reveal a factor kept from an earlier call; tens, for models that are NaN below; and a large number beside
    small ones, of either sign.
    """

    def __init__(self, model: Model, names: tuple[str, ...], tensors: Tensors) -> None:
        self.model, self.names, self.stand_ins = model, names, list[StandIn]()
        zeros = [tuple(t.new_zeros((rows, *t.shape[1:])) for t in tensors) for rows in range(1, PROBES + 1)]
        self._add(zeros)
        self.example = tuple(t[0] for t in zeros[0])
        for largest, wholes in ((1.0, (1, 0)), (100.0, (50, 1, 0)), (WIDE, (1000, 50, 1, 0)), (-WIDE, (-1, 1, 0))):
            for whole in wholes:
                with tolerate_errors():
                    batch = tuple(_different(t, largest, whole) for t in zeros[-1])
                    self._add([batch, tuple(t[:1] for t in batch)], wide=abs(largest) >= WIDE)
                    break

    @property
    def full(self) -> list[StandIn]:
        """The stand-ins of `PROBES` rows."""
        return [one for one in self.stand_ins if len(one.batch[0]) == PROBES]

    def _add(self, batches: list[Tensors], *, wide: bool = False) -> None:
        tracked = tree_map(lambda t: t.clone().requires_grad_(torch.is_floating_point(t)), batches)
        first = [trial_run(self.model, self.names, tree_map(torch.clone, batch)) for batch in tracked]
        record_plate(first)
        for batch, trial in zip(batches, first, strict=True):
            values = {name: site.value.detach() for name, site in trial.sites.items() if not site.observed}
            again, densities = self._again(batch, values)
            self._require_untouched(again, densities, tracked)
            known = {name: float(density.detach()) for name, density in densities.items()}
            self.stand_ins.append(StandIn(batch, values, again, known, wide))

    def _again(self, batch: Tensors, values: dict[str, Tensor]) -> tuple[Trial, dict[str, Tensor]]:
        """Return the sites and their densities at these values."""
        run = Run(values, set(values), "", ())
        trial = trial_run(self.model, self.names, tree_map(torch.clone, batch), run)
        return trial, run.priors

    def _require_untouched(self, trial: Trial, densities: dict[str, Tensor], tracked: Any) -> None:
        """Refuse if a density follows from what an earlier call was given."""
        inputs = {id(t) for t in tree_leaves(tracked)}
        for name, density in densities.items():
            if any(id(getattr(node, "variable", None)) in inputs for node in _nodes(density)):
                raise PrivacyError(
                    f"The model keeps something from call to call: site {name!r} ({trial.sites[name].line}) uses what "
                    "an earlier call was given, as when the first records' mean is kept to centre all. Use public "
                    "constants."
                )

    def require_unchanged(self) -> None:
        """Refuse if a stand-in no longer has the densities that it had at first."""
        for one in self.stand_ins:
            try:
                with torch.no_grad():
                    trial, after = self._again(one.batch, one.values)
            except ValueError as error:
                raise PrivacyError(
                    "The model keeps something from call to call: it ran on public stand-ins at first, and no "
                    f"longer does. {error}"
                ) from None
            for name in {**one.densities, **after}:
                both = name in one.densities and name in after
                if not both or not _unchanged(one.densities[name], float(after[name])):
                    line = (trial if name in trial.sites else one.trial).sites[name].line
                    raise PrivacyError(
                        f"The model keeps something from call to call: site {name!r} ({line}) has another density on "
                        "the same public stand-ins after other calls than before, or draws random numbers outside "
                        "pyro.sample. Use public constants."
                    )


def _different(zeros: Tensor, largest: float, whole: int) -> Tensor:
    """Return distinct unsorted numbers up to the largest; for integers `whole` in the first row, half of it below.

    For wide stand-ins the first record's numbers are as large as `largest`, and the others' are below one.
    """
    if torch.is_floating_point(zeros):
        size = 1.0 if abs(largest) >= WIDE else largest
        numbers = torch.linspace(0.0, size, zeros.numel() + 2)[1:-1].reshape(zeros.shape).to(zeros).roll(1, 0)
        return torch.cat([numbers[:1] * (largest / size), numbers[1:]])
    return torch.cat([zeros[:1] + whole, zeros[1:] + whole // 2]).to(zeros)


def _nodes(tensor: Tensor) -> set[Any]:
    """Return the steps by which a tensor was computed from tracked ones."""
    seen, left = set(), [tensor.grad_fn]
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
