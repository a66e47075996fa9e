"""Trial runs of a model on public stand-ins for records: its sites, where they are written, and how its errors read."""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tacita._check import PrivacyError
from tacita._guard import Stopped, attempt
from tacita.inference import terms
from tacita.inference.terms import Model, Run, Tensors, called, without_validation

PROBES = 3  # stand-ins that the model is tried on at a time
WIDE = 1e4  # the largest number in a stand-in
_LIBRARIES = (*(str(Path(str(m.__file__)).parent) for m in (pyro, torch, terms)), contextlib.__file__, "<frozen")


class ModelError(ValueError):
    """A model that raises, or has no density, on stand-ins; one whose records cannot be separated is a PrivacyError."""


@dataclass
class Site:
    """What a trial run shows of one site."""

    where: str  # its name and line
    fn: Any
    value: Tensor
    observed: bool
    frames: dict[str, int | None]  # the plates around it, and their dimensions; None for a loop


class Trial(Messenger):  # type: ignore[misc]
    """Record every site, where it is written, and the plates around it."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.rows = rows  # how many records the model is called with
        self.sites: dict[str, Site] = {}
        self.plates: dict[str, tuple[int, str]] = {}  # size, which a record may decide, and line
        self.last = ""

    def _pyro_sample(self, msg: Any) -> None:
        self.last = f"{'plate' if site_is_subsample(msg) else 'site'} {msg['name']!r} ({_user_line()})"

    def _pyro_post_sample(self, msg: Any) -> None:
        line = _user_line()
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
            where = f"{msg['name']!r} ({line})"
            self.sites[msg["name"]] = Site(where, msg["fn"], msg["value"], msg["is_observed"], frames)

    def _pyro_param(self, msg: Any) -> None:
        raise PrivacyError(
            f"Parameter {msg['name']!r} ({_user_line()}) is to be learned but has no prior, so it has no posterior. "
            f"Make it pyro.sample({msg['name']!r}, …)."
        )


def record_plate(trials: list[Trial]) -> str:
    """Return the plate over the records: the one whose size follows their number, with all observed sites inside."""
    lines = {name: line for trial in trials for name, (_, line) in trial.plates.items()}
    observed = [site for trial in trials for site in trial.sites.values() if site.observed]
    if not observed:
        raise PrivacyError("The model observes nothing: pass the records to a site, as obs=….")
    right = {name for name in lines if all(trial.plates.get(name, (0,))[0] == trial.rows for trial in trials)}
    common = right
    for site in observed:
        around = ", ".join(f"{p!r} ({lines[p]})" for p in site.frames)
        if not right.intersection(site.frames):
            problem = f"plate {around} has another size" if around else "there is no plate around it"
            raise PrivacyError(
                f"Site {site.where} observes records outside a plate of their number ({problem}), so they "
                "cannot be told apart. Write: with pyro.plate('records', len(…)): around it."
            )
        if not common.intersection(site.frames):
            raise PrivacyError(
                f"Site {site.where} observes records in plate {around}, and other sites do in plate "
                f"{min(common)!r} ({lines[min(common)]}). Observe all of a record in one plate."
            )
        common = common.intersection(site.frames)
    return min(common)


def _user_line() -> str:
    """Return the file and line of the user's code that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


@contextlib.contextmanager
def model_errors(trial: Trial) -> Iterator[None]:
    """Turn an error of the model into one line that says where, without its message, which may hold values."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of a deviation of one record, for instance
            yield
    except (PrivacyError, Stopped):
        raise
    except BaseException as error:  # a SystemExit, too, would depend on a record
        frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
        lines = [f" at {Path(file).name}, line {line}" for file, line in frames if not file.startswith(_LIBRARIES)]
        where = lines[-1] if lines else ""
        last = f", after {trial.last}" if trial.last else ""
        what = f"{trial.rows} stand-in records" if trial.rows > 1 else "a stand-in record"
        raise ModelError(
            f"The Pyro model raised {type(error).__name__}{where}{last}, when called with {what} of zeros."
            f"{_hint(trial, attempt(str, error) or '')} It must run on any number of records, one included, and "
            "on zeros of the same shapes: it is checked on these, as a check on records would tell of them."
        ) from None


def _hint(trial: Trial, message: str) -> str:
    if "subsample_size" in message:
        return " A plate subsamples the records itself. Leave that to the fit: write pyro.plate(…, len(…))."
    if ".item()" in message or "data-dependent" in message:
        return " A record's value decides what is run: write it with torch.where instead of if."
    if any(words in message for words in ("inplace", "in-place", "the broadcast shape")):
        return " It changes a tensor in place, which has no per-record form: write it out of place."
    if any(words in message for words in ("can't be cast to the desired", "bool tensor")):
        return " Its distributions need real numbers: pass whole numbers and truth values as floats."
    fixed = [f"{name!r} ({line})" for name, (size, line) in trial.plates.items() if size != trial.rows]
    return f" Plates that do not follow the number of records: {', '.join(fixed)}." if fixed else ""


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
                with contextlib.suppress(ModelError):
                    batch = tuple(_different(t, largest, whole) for t in zeros[-1])
                    self._add([batch, tuple(t[:1] for t in batch)], wide=abs(largest) >= WIDE)
                    break

    @property
    def full(self) -> list[StandIn]:
        """The stand-ins of `PROBES` rows."""
        return [one for one in self.stand_ins if len(one.batch[0]) == PROBES]

    def run(self, batch: Tensors, values: Mapping[str, Tensor] | None = None) -> tuple[Trial, dict[str, Tensor]]:
        """Call the model with a batch; return its sites, and their densities if values of the sites are given."""
        run = Run(values or {}, set(values or ()), "", (), priors=values is not None)
        with model_errors(trial := Trial(len(batch[0]))), without_validation(), trial, run:
            called(self.model, self.names, tree_map(torch.clone, batch))
        return trial, run.priors

    def _add(self, batches: list[Tensors], *, wide: bool = False) -> None:
        """Keep stand-ins on which the model runs; refuse if a density follows from what an earlier call was given."""
        tracked = tree_map(lambda t: t.clone().requires_grad_(torch.is_floating_point(t)), batches)
        first = [self.run(batch)[0] for batch in tracked]
        record_plate(first)
        inputs = {id(t) for t in tree_leaves(tracked)}
        for batch, trial in zip(batches, first, strict=True):
            values = {name: site.value.detach() for name, site in trial.sites.items() if not site.observed}
            again, densities = self.run(batch, values)
            for name, density in densities.items():
                if any(id(getattr(node, "variable", None)) in inputs for node in _nodes(density)):
                    raise PrivacyError(
                        f"The model keeps something from call to call: site {again.sites[name].where} uses "
                        "what an earlier call was given, as when the first records' mean is kept to centre all. Use "
                        "public constants."
                    )
            known = {name: float(density.detach()) for name, density in densities.items()}
            self.stand_ins.append(StandIn(batch, values, again, known, wide))

    def require_unchanged(self) -> None:
        """Refuse if a stand-in no longer has the densities that it had at first."""
        for one in self.stand_ins:
            try:
                with torch.no_grad():
                    trial, after = self.run(one.batch, one.values)
            except ValueError as error:
                raise PrivacyError(
                    "The model keeps something from call to call: it ran on public stand-ins at first, and no "
                    f"longer does. {error}"
                ) from None
            for name in {**one.densities, **after}:
                both = name in one.densities and name in after
                if not both or not np.isclose(float(after[name]), one.densities[name], 1e-6, 1e-6, equal_nan=True):
                    where = (trial if name in trial.sites else one.trial).sites[name].where
                    raise PrivacyError(
                        f"The model keeps something from call to call: site {where} has another density on "
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
