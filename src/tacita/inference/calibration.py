"""How often a fit's intervals hold the truth, found by simulation.

A truth is drawn from the fitted posterior, responses are simulated from the model at that truth and at the records'
own covariates, and the same fit with fresh noise is made of them. Over many such worlds, 95% intervals should hold the
truth 95% of the time. The covariates are the real ones, so what is found is for the data's owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor

from tacita import _check
from tacita.inference.fit import Progress, fit, shown
from tacita.inference.inputs import records_like
from tacita.inference.labels import OWNER, label_of_run
from tacita.inference.results import Result
from tacita.inference.terms import Separated, called, without_validation
from tacita.posterior.pyro_model import isolated_pyro_session
from tacita.runs import Run, read_json, write_json


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
            f"In {self.worlds} simulated worlds {self.level:.0%} intervals held the truth {self.share:.1%} of the time "
            f"(± {self.error:.1%}): {verdict}.{rows}"
        )


def coverage(
    result: Result,
    data: Any,
    *,
    worlds: int = 20,
    level: float = 0.95,
    rng: int | None = None,
    progress: Progress | None = None,
) -> Coverage:
    """Return how often intervals of a fit like this one hold the truth.

    Args:
        result: A fit by `noisy`, `sgld` or `plain`. Where it has a run directory, its label says afterwards what was
            found.
        data: What it was fitted to; covariates are taken from it.
        worlds: How many times responses are simulated and fitted; each takes as long as the fit.
        level: The probability that an interval is to hold.
        rng: A seed; None is seeded by the operating system.
        progress: Called with (world, worlds) after each.

    Guarantee:
        None. Nothing is charged, so what is found is for the data's owner and must not be published.

    Raises:
        ValueError: If the model observes something other than one of its arguments, which then cannot be simulated.
    """
    chance, count = _check.probability("level", level), _check.count("worlds", worlds, low=2)
    if result.method == "final-samples":
        raise ValueError("coverage repeats the fit; with method='final-samples' that is not supported.")
    separated, seeds = result.posterior.separated, np.random.default_rng(rng)
    tensors, names = records_like(separated, data, "data"), separated.names
    responses = _responses(separated, tensors)
    settings = {key: value for key, value in result.settings.items() if key not in ("method", "bare_rate")}
    if result.method != "plain":
        settings["noise_multiplier"] = dict(result.guarantee.mechanism)["noise_multiplier"]
    tell = shown(progress, "Worlds")
    inside: list[Tensor] = []
    stretch: list[Tensor] = []
    truths = result.draws(rng=int(seeds.integers(2**62)))
    for number in range(count):
        drawn = int(seeds.integers(2**62))
        truth = {name: values[drawn % len(values)] for name, values in truths.items()}  # one draw of all sites
        made = _simulated(separated, tensors, truth, responses, int(seeds.integers(2**62)))
        again = fit(
            separated.model,
            dict(zip(names, made, strict=True)) if names else made,
            method=result.method,
            panel=0,
            rng=int(seeds.integers(2**62)),
            progress=lambda step, steps: None,
            **settings,
        )
        held, needed = _held(again, truth, chance)
        inside.append(held)
        stretch.append(needed)
        tell(number + 1, count)
    found = _counted(separated, torch.stack(inside), torch.stack(stretch), chance)
    _keep(result, found)
    return found


def _responses(separated: Separated, tensors: tuple[Tensor, ...]) -> dict[str, int]:
    """Return which of the model's arguments each observed site observes."""
    few = tuple(t[:2].clone() for t in tensors)
    with isolated_pyro_session(), without_validation():
        trace = poutine.trace(separated.model).get_trace(*(() if separated.names else few), **_named(separated, few))
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


def _named(separated: Separated, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(separated.names, tensors, strict=True)) if separated.names else {}


def _simulated(
    separated: Separated,
    tensors: tuple[Tensor, ...],
    truth: Mapping[str, Tensor],
    responses: Mapping[str, int],
    seed: int,
) -> tuple[Tensor, ...]:
    """Return the data with responses drawn from the model at a truth."""
    model = poutine.condition(poutine.uncondition(separated.model), data=dict(truth))
    with isolated_pyro_session(), without_validation(), torch.no_grad():
        pyro.set_rng_seed(seed % 2**32)
        trace = poutine.trace(lambda: called(model, separated.names, tensors)).get_trace()
    made = list(tensors)
    for name, place in responses.items():
        made[place] = trace.nodes[name]["value"].to(tensors[place].dtype)
    return tuple(made)


def _held(result: Result, truth: Mapping[str, Tensor], level: float) -> tuple[Tensor, Tensor]:
    """Return, for every number of the posterior, whether its interval holds the truth and how far it would have to.

    Numbers that never vary, such as those of a Cholesky factor that are 0 or 1, count for nothing.
    """
    held, needed = [], []
    for name, values in result.draws().items():
        table, target = values.reshape(len(values), -1).double(), truth[name].reshape(-1).double()
        low, high = (torch.quantile(table, q, dim=0) for q in ((1 - level) / 2, (1 + level) / 2))
        middle, half = (low + high) / 2, (high - low) / 2
        held.append(torch.where(half > 0.0, ((low <= target) & (target <= high)).double(), torch.nan))
        needed.append(torch.where(half > 0.0, (target - middle).abs() / half, torch.nan))
    return torch.cat(held), torch.cat(needed)


def _counted(separated: Separated, inside: Tensor, needed: Tensor, level: float) -> Coverage:
    by_world = inside.nanmean(1)
    share, count = float(by_world.mean()), len(by_world)
    guess = (share * count + 1.0) / (count + 2.0)  # worlds that all agree leave doubt, too
    sizes = [int(np.prod(u.shape)) for u in separated.unknowns]
    parts = torch.split(inside, sizes, dim=1)
    return Coverage(
        level=level,
        share=share,
        error=max(float(by_world.std()), (guess * (1.0 - guess) / inside.shape[1]) ** 0.5) / count**0.5,
        widen=float(torch.nanquantile(needed.flatten(), level)),
        sites=tuple((u.name, float(part.nanmean())) for u, part in zip(separated.unknowns, parts, strict=True)),
        worlds=len(inside),
    )


def _keep(result: Result, found: Coverage) -> None:
    """Put what was found on the run's label."""
    if result.run_dir is None:
        return
    kept = read_json(result.run_dir, OWNER) if (result.run_dir / OWNER).is_file() else {}
    write_json(result.run_dir, OWNER, {**kept, "coverage": asdict(found)})
    Run(result.run_dir).write_label(label_of_run(result.run_dir))
