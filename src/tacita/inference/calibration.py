"""How often a fit's intervals hold the truth, by simulation.

A truth is drawn from the fitted posterior, responses are simulated from the model at that truth and at the records'
covariates, and the same fit is repeated on them with fresh noise. Over many such worlds, 95% intervals should hold the
truth 95% of the time. The covariates are the real ones, so the result is for the data's owner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor

from tacita import _check
from tacita._check import renamed
from tacita._progress import Progress, quiet, shown
from tacita.inference.fitting import fit, label_of_run
from tacita.inference.labels import OWNER, owner_facts
from tacita.inference.methods import METHODS
from tacita.inference.request import records_like
from tacita.inference.results import Result
from tacita.inference.terms import Model, Separated, Tensors, called, without_validation
from tacita.posterior.pyro_model import isolated_pyro_session
from tacita.runs import Run, write_json


@dataclass(frozen=True)
class Coverage:
    """How often intervals held the truth in simulated worlds. For the data's owner.

    Attributes:
        level: The probability that an interval was to hold.
        share: How often it did, over all unknowns and worlds.
        error: The standard error of `share`, from world to world.
        widen: The factor by which intervals must be stretched about their middles to hold the truth as often as they
            should; 1 or less if they do.
        sites: (site, its share), in the model's order.
        worlds: How many were simulated.
    """

    level: float
    share: float
    error: float
    widen: float
    sites: tuple[tuple[str, float], ...]
    worlds: int

    @property
    def short(self) -> bool:
        """Whether intervals are too narrow beyond what chance explains."""
        return self.share + 2.0 * self.error < self.level

    def __str__(self) -> str:
        verdict = f"stretch them by a factor of {self.widen:.2f}" if self.short else "as they should, up to chance"
        rows = "".join(f"\n  {site}: {share:.0%}" for site, share in self.sites)
        return (
            f"In {self.worlds} simulated worlds {self.level:.0%} intervals contained the truth {self.share:.1%} of the "
            f"time (± {self.error:.1%}): {verdict}.{rows}"
        )


@renamed("rng")
def coverage(
    result: Result,
    data: Any,
    *,
    worlds: int = 20,
    level: float = 0.95,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Coverage:
    """Return how often intervals of a fit like this one hold the truth.

    Args:
        result: A fit by `noisy`, `sgld` or `plain`. If it has a run directory, the result is added to its label.
        data: What it was fitted to; covariates are taken from it.
        worlds: How many times responses are simulated and fitted; each takes as long as the fit.
        level: The probability that an interval is to hold.
        seed: A seed; None, the default, takes one from the operating system.
        progress: Called after each world; without it, a bar is shown on a terminal.

    Returns:
        The share of intervals that held the truth, with its standard error, overall and by site.

    Guarantee:
        None. Nothing is charged, so the result is for the data's owner and must not be published.

    Raises:
        ValueError: If the model observes something other than one of its arguments, which then cannot be simulated.
    """
    level, count = _check.probability("level", level), _check.count("worlds", worlds, low=2)
    if not METHODS[result.method].repeatable:
        raise ValueError(f"coverage repeats the fit; with method={result.method!r} that is not supported.")
    if result.guarantee.unit == "person":
        raise ValueError("coverage simulates records that are independent, and this fit protects people with several.")
    separated, seeds = result.posterior.separated, np.random.default_rng(seed)
    tensors, names = records_like(separated, data, "data"), separated.names
    responses = _responses(separated, tensors)
    settings = {key: value for key, value in result.settings.items() if key not in ("method", "bare_rate")}
    settings |= {key: value for key, value in result.guarantee.mechanism if key == "noise_multiplier"}
    stretches = list[Tensor]()
    truths = result.draws(seed=int(seeds.integers(2**62)))
    with shown(progress) as report:
        for number in range(count):
            drawn = int(seeds.integers(2**62))
            truth = {name: values[drawn % len(values)] for name, values in truths.items()}  # one draw of all sites
            simulated = _simulated(separated, tensors, truth, responses, int(seeds.integers(2**62)))
            again = fit(
                separated.model,
                dict(zip(names, simulated, strict=True)) if names else simulated,
                method=result.method,
                panel=0,
                seed=int(seeds.integers(2**62)),
                progress=quiet,
                **settings,
            )
            stretches.append(_stretch(again, truth, level))
            report(number + 1, count, "world")
    found = _summarised(separated, torch.stack(stretches), level)
    if result.run_dir is not None:
        write_json(result.run_dir, OWNER, {**owner_facts(result.run_dir), "coverage": asdict(found)})
        Run(result.run_dir).write_label(label_of_run(result.run_dir))
    return found


def _responses(separated: Separated, tensors: Tensors) -> dict[str, int]:
    """Return which of the model's arguments each observed site observes."""
    few = tuple(t[:2].clone() for t in tensors)
    trace = _traced(separated.model, separated.names, few)
    found = {}
    for name in trace.observation_nodes:
        value = trace.nodes[name]["value"]
        if trace.nodes[name]["infer"].get("_deterministic"):
            continue
        same = [i for i, t in enumerate(few) if value.shape == t.shape and value.data_ptr() == t.data_ptr()]
        if not same:
            raise ValueError(
                f"Site {name!r} observes something other than one of the model's arguments as it is, so responses "
                "cannot be simulated. Pass the observed values to the model as an argument of their own."
            )
        found[name] = same[0]
    return found


def _simulated(
    separated: Separated,
    tensors: Tensors,
    truth: Mapping[str, Tensor],
    responses: Mapping[str, int],
    seed: int,
) -> Tensors:
    """Return the data with responses drawn from the model at a truth."""
    model = poutine.condition(poutine.uncondition(separated.model), data=dict(truth))
    trace = _traced(model, separated.names, tensors, seed)
    simulated = list(tensors)
    for name, place in responses.items():
        simulated[place] = trace.nodes[name]["value"].to(tensors[place].dtype)
    return tuple(simulated)


def _traced(model: Model, names: tuple[str, ...], tensors: Tensors, seed: int = 0) -> Any:
    with isolated_pyro_session(), without_validation(), torch.no_grad():
        pyro.set_rng_seed(seed % 2**32)
        return poutine.trace(lambda: called(model, names, tensors)).get_trace()


def _stretch(result: Result, truth: Mapping[str, Tensor], level: float) -> Tensor:
    """Return by which factor each number's interval must be stretched about its middle to hold the truth.

    It is 1 or less where it does. Numbers that never vary, such as those of a Cholesky factor that are 0 or 1, count
    for nothing: there it is NaN.
    """
    ends = torch.tensor([(row.low, row.high) for row in result.summary(level=level)], dtype=torch.float64)
    middle, half = ends.mean(1), (ends[:, 1] - ends[:, 0]) / 2
    target = torch.cat([truth[u.name].reshape(-1).double() for u in result.posterior.separated.unknowns])
    return torch.where(half > 0.0, (target - middle).abs() / half, torch.nan)


def _summarised(separated: Separated, stretches: Tensor, level: float) -> Coverage:
    inside = torch.where(stretches.isnan(), torch.nan, (stretches <= 1.0).double())
    by_world, worlds = inside.nanmean(1), len(inside)
    share = float(by_world.mean())
    guess = (share * worlds + 1.0) / (worlds + 2.0)  # some doubt is left even if all worlds agree
    parts = torch.split(inside, [math.prod(u.shape) for u in separated.unknowns], dim=1)
    return Coverage(
        level=level,
        share=share,
        error=max(float(by_world.std()), (guess * (1.0 - guess) / inside.shape[1]) ** 0.5) / worlds**0.5,
        widen=float(torch.nanquantile(stretches.flatten(), level)),
        sites=tuple((u.name, float(part.nanmean())) for u, part in zip(separated.unknowns, parts, strict=True)),
        worlds=worlds,
    )
