"""Trial runs of a model: which sites it has, where they are written, and how its errors are reported."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from tacita._check import PrivacyError
from tacita._guard import Stopped, attempt
from tacita.inference import terms
from tacita.inference.terms import Model, Run, Tensors, called, without_validation

_LIBRARIES = (*(str(Path(str(m.__file__)).parent) for m in (pyro, torch, terms)), contextlib.__file__, "<frozen")


@dataclass
class Site:
    """What a trial run shows of one site."""

    fn: Any
    value: Tensor
    observed: bool
    frames: dict[str, int | None]  # the plates around it, and their dimensions; None for a loop
    line: str


class Trial(Messenger):  # type: ignore[misc]
    """Record every site, where it is written, and the plates around it."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, Site] = {}
        self.plates: dict[str, tuple[int, str]] = {}  # size, which a record may decide, and line
        self.rows = 0  # how many records the model was called with
        self.last = ""

    def _pyro_sample(self, msg: Any) -> None:
        self.last = f"{'plate' if site_is_subsample(msg) else 'site'} {msg['name']!r} ({user_line()})"

    def _pyro_post_sample(self, msg: Any) -> None:
        line = user_line()
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
            self.sites[msg["name"]] = Site(msg["fn"], msg["value"], msg["is_observed"], frames, line)

    def _pyro_param(self, msg: Any) -> None:
        raise PrivacyError(
            f"Parameter {msg['name']!r} ({user_line()}) is to be learned but has no prior, so it has no posterior. "
            f"Make it pyro.sample({msg['name']!r}, …)."
        )


def trial_run(
    model: Model,
    names: tuple[str, ...],
    batch: Tensors,
    run: Run | None = None,
) -> Trial:
    """Call the model with stand-ins and return the sites it has."""
    trial = Trial()
    trial.rows = len(batch[0])
    with model_errors(trial, trial.rows), without_validation(), trial, run or contextlib.nullcontext():
        called(model, names, batch)
    return trial


def record_plate(trials: list[Trial]) -> str:
    """Return the plate over the records: the one whose size follows their number, with all observed sites inside."""
    lines = {name: line for trial in trials for name, (_, line) in trial.plates.items()}
    observed = [(name, site) for trial in trials for name, site in trial.sites.items() if site.observed]
    if not observed:
        raise PrivacyError("The model observes nothing: pass the records to a site, as obs=….")
    right = {name for name in lines if all(trial.plates.get(name, (0,))[0] == trial.rows for trial in trials)}
    common = right
    for name, site in observed:
        around = ", ".join(f"{p!r} ({lines[p]})" for p in site.frames)
        if not right.intersection(site.frames):
            problem = f"plate {around} has another size" if around else "there is no plate around it"
            raise PrivacyError(
                f"Site {name!r} ({site.line}) observes records outside a plate of their number ({problem}), so they "
                "cannot be told apart. Write: with pyro.plate('records', len(…)): around it."
            )
        if not common.intersection(site.frames):
            raise PrivacyError(
                f"Site {name!r} ({site.line}) observes records in plate {around}, and other sites do in plate "
                f"{min(common)!r} ({lines[min(common)]}). Observe all of a record in one plate."
            )
        common = common.intersection(site.frames)
    return min(common)


def user_line() -> str:
    """Return the file and line of the user's code that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


@contextlib.contextmanager
def model_errors(trial: Trial, count: int) -> Iterator[None]:
    """Turn an error of the model into one line that says where, without its message, which may hold values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracked tensors that become numbers, or of a deviation of one record
            yield
    except (PrivacyError, Stopped):
        raise
    except BaseException as error:  # a SystemExit, too, would depend on a record
        where, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(_LIBRARIES):
                where = f" at {Path(code.co_filename).name}, line {trace.tb_lineno}"
            trace = trace.tb_next
        last = f", after {trial.last}" if trial.last else ""
        plural = "s" * (count > 1)
        what = f"{count if plural else 'a'} stand-in record{plural} of zeros"
        raise ValueError(
            f"The Pyro model raised {type(error).__name__}{where}{last}, when called with {what}."
            f"{_hint(trial, count, attempt(str, error) or '')} It must run on any number of records, one included, and "
            "on zeros of the same shapes: it is checked on these, as a check on records would tell of them."
        ) from None


def _hint(trial: Trial, count: int, message: str) -> str:
    if "subsample_size" in message:
        return " A plate subsamples the records itself. Leave that to the fit: write pyro.plate(…, len(…))."
    if ".item()" in message or "data-dependent" in message:
        return " A record's value decides what is run: write it with torch.where instead of if."
    if any(words in message for words in ("inplace", "in-place", "the broadcast shape")):
        return " It changes a tensor in place, which has no per-record form: write it out of place."
    if any(words in message for words in ("can't be cast to the desired", "bool tensor")):
        return " Its distributions need real numbers: pass whole numbers and truth values as floats."
    fixed = [f"{name!r} ({line})" for name, (size, line) in trial.plates.items() if size != count]
    return f" Plates that do not follow the number of records: {', '.join(fixed)}." if fixed else ""
