"""Ordinary Pyro models that are conjugate, recognised by their density.

A model is run on placeholder records only and never sees the data. It is checked in two ways: its sites
must be those of a supported family, and its log joint density must agree with that family's at every placeholder
dataset and latent value tried. Privacy does not rest on this; only the usefulness of the released posterior does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita.posterior import models

try:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro import poutine
    from pyro.poutine.util import site_is_factor, site_is_subsample
except ImportError as error:
    raise _check.missing("Pyro models need Pyro and PyTorch", "bayes") from error

if TYPE_CHECKING:
    from tacita._check import Floats

TOLERANCE = 1e-4  # Relative: models compute in single precision.
_SUPPORTED = (
    "Supported are a Beta prior with Bernoulli records, a Dirichlet prior with Categorical records, and a Normal prior "
    "on the mean of Normal records whose scale is a constant, with every record observed once and as it is."
)

Site = dict[str, Any]
Reading = tuple[Any, tuple[Any, ...]]  # the prior's class, and the numbers that describe prior and records


@dataclass(frozen=True)
class _Family:
    """A conjugate family: one entry of `_FAMILIES`.

    Attributes:
        records: The distribution of a record.
        prior: The prior's parameters, by name.
        latent: The parameter of a record's distribution that is the latent.
        column: What the family is for; `{size}` is the number of the latent's entries.
        cells: How many cells that column has, from the latent's entries; None for real numbers.
        described: The description, from the numbers of prior and records.
        points: Latent values to try: in the middle of the prior, and far out, where a clamp would show.
        constants: A record's other parameters.
    """

    records: Any
    prior: tuple[str, ...]
    latent: str
    column: str
    cells: Callable[[int], int | None]
    described: Callable[..., models.Model]
    points: Callable[[Floats], Any]
    constants: tuple[str, ...] = ()


def _shares(numbers: Floats) -> list[Floats]:
    rng = np.random.default_rng(9)
    return [0.1 / len(numbers) + 0.9 * rng.dirichlet(np.full(len(numbers), a)) for a in (1.0, 1.0, 0.1)]


_FAMILIES: dict[Any, _Family] = {
    dist.Beta: _Family(
        dist.Bernoulli,
        prior=("concentration1", "concentration0"),
        latent="probs",
        column="a true/false column",
        cells=lambda size: 2,
        described=models.beta,
        points=lambda numbers: (0.13, 0.46, 0.81, 0.002, 0.997),
    ),
    dist.Dirichlet: _Family(
        dist.Categorical,
        prior=("concentration",),
        latent="probs",
        column="a column with {size} categories",
        cells=lambda size: size,
        described=models.dirichlet,
        points=_shares,
    ),
    dist.Normal: _Family(
        dist.Normal,
        prior=("loc", "scale"),
        latent="loc",
        constants=("scale",),
        column="a column of real numbers",
        cells=lambda size: None,
        described=lambda mean, sd, record_sd: models.normal(mean, sd, record_sd=record_sd),
        points=lambda numbers: numbers[0] + numbers[1] * np.array([-31.7, -1.3, 0.2, 2.1, 29.3]),
    ),
}


class UnsupportedModel(ValueError):
    """A Pyro model that is not equivalent to a conjugate one.

    Attributes:
        reason: Why, without a full stop.
        help: What is supported.
    """

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason, help)
        self.reason, self.help = reason, help

    def __str__(self) -> str:
        return f"{self.reason}. {self.help}"


def recognise(model: Callable[[Any], Any], *, cells: int | None) -> models.Model:
    """Return the conjugate description that an ordinary Pyro model is equivalent to.

    Records may be observed in one vectorised site or one at a time, in any order.

    Args:
        model: A function of one argument, the tensor of records: floats of 0 and 1 for a true/false column, whole
            numbers from 0 for categories, floats for reals. It is called with placeholders only.
        cells: The number of categories of the column, 2 for a true/false one, or None for real numbers.

    Returns:
        A `Beta`, with the weights of (true, false); a `Dirichlet`, with weights in the order of the categories; or a
        `Normal`.

    Raises:
        UnsupportedModel: If the model fails on placeholders, is not conjugate, or does not suit the column.

    Examples:
        >>> def smokers(data):
        ...     share = pyro.sample("share", dist.Beta(2.0, 1.0))
        ...     with pyro.plate("people", len(data)):
        ...         pyro.sample("smoker", dist.Bernoulli(share), obs=data)
        >>> print(recognise(smokers, cells=2))
        beta(2, 1)
    """
    if not callable(model):
        raise TypeError(f"model must be a function of one argument, the tensor of records, got {model!r}.")
    if cells is not None:
        cells = _check.count("cells", cells, low=2)
    floats, whole = torch.get_default_dtype(), torch.long
    # Two cells may be a true/false column or two categories, and the model knows which.
    kinds = {None: (floats,), 2: (floats, whole)}.get(cells, (whole,))
    refusals = []
    with isolated_pyro_session():
        for kind in kinds:
            try:
                return _recognise(model, cells, [torch.tensor(a, dtype=kind) for a in _placeholders(cells)])
            except UnsupportedModel as refusal:
                refusals.append(refusal)
    raise refusals[0]


def _recognise(model: Callable[[Any], Any], cells: int | None, datasets: list[torch.Tensor]) -> models.Model:
    trace = _trace(model, datasets[0])
    latent, observed = _sites(trace)
    reading = _read(latent, observed, cells)
    family, numbers = _FAMILIES[reading[0]], np.array(reading[1], float)
    for data, point in product(datasets, family.points(numbers)):
        value = torch.as_tensor(point).to(latent["value"]).reshape(latent["value"].shape)
        trace = _trace(poutine.condition(model, data={latent["name"]: value}), data)
        if _read(*_sites(trace, latent["name"]), cells) != reading:
            raise _refusal("its prior or the scale of its records changes with the data or from call to call")
        _require_agreement(trace, family, latent["name"], value, data)
    as_written = [float(str(x)) for x in reading[1]]  # a single-precision 0.1 is meant as 0.1
    try:
        return family.described(*as_written)
    except ValueError as error:
        reason = f"The Pyro model's numbers are out of range: {str(error).removesuffix('.')}"
        raise UnsupportedModel(reason, _SUPPORTED) from error


def _require_agreement(trace: Any, family: _Family, name: str, value: torch.Tensor, data: torch.Tensor) -> None:
    """Refuse unless the records are the data, drawn given the latent, and the log joint is the family's."""
    latent, observed = _sites(trace, name)
    values = np.concatenate([_array(site["value"]) for site in observed])
    if len(values) != len(data):
        raise _refusal(f"it observes {len(values)} values where there are {len(data)} records")
    if not np.array_equal(np.sort(values), np.sort(_array(data))):
        raise _refusal("it observes something other than the records as they are, such as transformed or repeated ones")
    for site in observed:
        records = unwrapped(site["fn"])
        given = getattr(records, family.latent)
        drawn = _array(given).reshape(-1, given.shape[-1] if records.arg_constraints[family.latent].event_dim else 1)
        if drawn.shape[1] != value.numel() or not np.allclose(drawn, _array(value), rtol=TOLERANCE, atol=0.0):
            raise _refusal(f"the records of {site['name']!r} are not drawn with the latent {name!r} itself")
    with _model_errors():
        trace.compute_log_prob()
    found = {key: float(site["log_prob_sum"]) for key, site in trace.nodes.items() if "log_prob_sum" in site}
    constants = {key: getattr(records, key).reshape(-1)[0] for key in family.constants}
    record = family.records(**{family.latent: value.reshape(-1)}, **constants)
    log_prior = float(unwrapped(latent["fn"]).log_prob(value).sum())
    log_likelihood = float(record.log_prob(data).sum())
    for density, expected in ((found.pop(name), log_prior), (sum(found.values()), log_likelihood)):
        if not abs(density - expected) <= TOLERANCE * (1.0 + abs(expected)):
            raise _refusal("its density is not the product of the prior and of one factor for each record")


def _trace(model: Callable[[Any], Any], data: torch.Tensor) -> Any:
    with _model_errors():
        return poutine.trace(model).get_trace(data.clone())


def _sites(trace: Any, conditioned: str = "") -> tuple[Site, list[Site]]:
    """Return the latent site and the observed ones, or refuse the model for what else it holds."""
    sites = [s for s in trace.nodes.values() if s["type"] in ("sample", "param") and not site_is_subsample(s)]
    for site in sites:
        _require_plain(site)
    sites = [site for site in sites if not site["infer"].get("_deterministic")]
    latents = [site for site in sites if not site["is_observed"] or site["name"] == conditioned]
    observed = [site for site in sites if site["is_observed"] and site["name"] != conditioned]
    if len(latents) != 1:
        names = ", ".join(repr(site["name"]) for site in latents[:5])
        raise _refusal(f"it has {len(latents)} latents ({names}) instead of one" if latents else "it has no latent")
    if not observed:
        raise _refusal("it observes no records; pass them as obs=data")
    return latents[0], observed


def _require_plain(site: Site) -> None:
    name = repr(site["name"])
    if site["type"] == "param":
        raise _refusal(f"it has a parameter to be learned, {name}")
    if site_is_factor(site):
        raise _refusal(f"it has a factor, {name}")
    if any(frame.size != frame.full_size for frame in site["cond_indep_stack"]):
        raise _refusal(f"it observes a subsample of the records at {name}")
    if site["mask"] is not None:
        raise _refusal(f"it masks {name}")
    if not bool((torch.as_tensor(site["scale"]) == 1.0).all()):
        raise _refusal(f"it weights {name} by a scale")


def _read(latent: Site, observed: list[Site], cells: int | None) -> Reading:
    """Return the family and its numbers as the model computes with them, or refuse."""
    prior, name = unwrapped(latent["fn"]), repr(latent["name"])
    kind, size = type(prior), prior.event_shape.numel()
    family = _FAMILIES.get(kind)
    if family is None:
        raise _refusal(f"its latent {name} has a prior of type {kind.__name__}")
    group = latent["fn"].shape().numel() // size
    if group != 1:
        raise _refusal(f"its latent {name} is a group of {group} instead of a single one")
    if family.cells(size) != cells:
        column = "of real numbers" if cells is None else f"with {cells} categories"
        wanted = family.column.format(size=size)
        raise _refusal(f"its {kind.__name__} prior is for {wanted}, and this is a column {column}")
    constants = set()
    for site in observed:
        records = unwrapped(site["fn"])
        if type(records) is not family.records:
            other = type(records).__name__
            raise _refusal(f"{site['name']!r} has the distribution {other}, which is not conjugate to {kind.__name__}")
        constants |= {number for key in family.constants for number in _numbers(getattr(records, key))}
    if len(constants) > len(family.constants):
        raise _refusal("its records have different scales")
    return kind, (*(number for key in family.prior for number in _numbers(getattr(prior, key))), *constants)


def _placeholders(cells: int | None) -> list[Any]:
    """Return datasets of several lengths, odd so that swapping true and false cannot go unseen."""
    rng = np.random.default_rng(8)
    sizes = (3, 7, 129)
    if cells is None:
        return [rng.normal(scale=spread, size=n) for n, spread in zip(sizes, (1.0, 1e5, 1e2), strict=True)]
    constant = [np.zeros(5, int), np.full(5, cells - 1)]
    return [rng.integers(cells, size=n) for n in sizes] + constant


def unwrapped(fn: Any) -> Any:
    """Return a distribution without what makes it independent or expanded."""
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return fn


def _numbers(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.detach().cpu().numpy().reshape(-1))


def _array(tensor: torch.Tensor) -> Floats:
    return tensor.detach().cpu().numpy().reshape(-1).astype(np.float64)


def _refusal(reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"The Pyro model is not a conjugate one: {reason}", _SUPPORTED)


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        raise UnsupportedModel(
            f"The Pyro model raised {type(error).__name__} on placeholder records: {message}",
            f"It is called with one argument, a tensor of records, before any data is read. {_SUPPORTED}",
        ) from error


@contextmanager
def isolated_pyro_session() -> Iterator[None]:
    """Run Pyro models, then restore the random state and the parameter store."""
    state = pyro.util.get_rng_state()
    try:
        with torch.random.fork_rng(), pyro.get_param_store().scope():
            yield
    finally:
        pyro.util.set_rng_state(state)
