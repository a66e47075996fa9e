"""Ordinary Pyro models that are conjugate, recognised by their density.

A model is run on placeholder records only and never sees the data. It is checked in two ways: its sites
must be those of a supported family, and its log joint density must agree with that family's at every placeholder
dataset and latent value tried. Privacy does not rest on this; only the usefulness of the released posterior does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

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
_RECORDS = {dist.Beta: dist.Bernoulli, dist.Dirichlet: dist.Categorical, dist.Normal: dist.Normal}

Site = dict[str, Any]
Reading = tuple[Any, tuple[Any, ...]]  # the prior's class, and the numbers that describe prior and records


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
    for data, point in product(datasets, _points(reading)):
        value = torch.as_tensor(point).to(latent["value"]).reshape(latent["value"].shape)
        trace = _trace(poutine.condition(model, data={latent["name"]: value}), data)
        if _read(*_sites(trace, latent["name"]), cells) != reading:
            raise _refusal("its prior or the scale of its records changes with the data or from call to call")
        _require_agreement(trace, reading, latent["name"], _array(value), _array(data))
    return _described(reading)


def _require_agreement(trace: Any, reading: Reading, name: str, point: Floats, data: Floats) -> None:
    """Refuse unless the records are the data, drawn given the latent, and the log joint is the family's."""
    _, observed = _sites(trace, name)
    values = np.concatenate([_array(site["value"]) for site in observed])
    if len(values) != len(data):
        raise _refusal(f"it observes {len(values)} values where there are {len(data)} records")
    if not np.array_equal(np.sort(values), np.sort(data)):
        raise _refusal("it observes something other than the records as they are, such as transformed or repeated ones")
    for site in observed:
        drawn = _drawn_with(_unwrapped(site["fn"]))
        if drawn.shape[1] != len(point) or not np.allclose(drawn, point, rtol=TOLERANCE, atol=0.0):
            raise _refusal(f"the records of {site['name']!r} are not drawn with the latent {name!r} itself")
    with _model_errors():
        trace.compute_log_prob()
    log_probs = {key: float(s["log_prob_sum"]) for key, s in trace.nodes.items() if "log_prob_sum" in s}
    log_prior = log_probs.pop(name)
    for found, terms in zip((log_prior, sum(log_probs.values())), _log_joint(reading, point, data), strict=True):
        if not abs(found - terms.sum()) <= TOLERANCE * (1.0 + np.abs(terms).sum()):
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
    prior, name = _unwrapped(latent["fn"]), repr(latent["name"])
    family = type(prior)
    if family not in _RECORDS:
        raise _refusal(f"its latent {name} has a prior of type {family.__name__}")
    shape = latent["fn"].shape()
    wanted = prior.event_shape.numel()
    if shape.numel() != wanted:
        raise _refusal(f"its latent {name} is a group of {shape.numel() // wanted} instead of a single one")
    _require_suited(family, wanted, cells)
    for site in observed:
        if type(_unwrapped(site["fn"])) is not _RECORDS[family]:
            kind = type(_unwrapped(site["fn"])).__name__
            raise _refusal(f"{site['name']!r} has the distribution {kind}, which is not conjugate to {family.__name__}")
    if family is dist.Beta:
        return family, (*_numbers(prior.concentration1), *_numbers(prior.concentration0))
    if family is dist.Dirichlet:
        return family, _numbers(prior.concentration)
    scales = {scale for site in observed for scale in _numbers(_unwrapped(site["fn"]).scale)}
    if len(scales) > 1:
        raise _refusal("its records have different scales")
    return family, (*_numbers(prior.loc), *_numbers(prior.scale), *scales)


def _require_suited(family: Any, size: int, cells: int | None) -> None:
    column = "of real numbers" if cells is None else f"with {cells} categories"
    kind = {dist.Beta: "a true/false column", dist.Normal: "a column of real numbers"}.get(
        family, f"a column with {size} categories"
    )
    suited = {dist.Beta: cells == 2, dist.Normal: cells is None}.get(family, cells == size)
    if not suited:
        raise _refusal(f"its {family.__name__} prior is for {kind}, and this is a column {column}")


def _described(reading: Reading) -> models.Model:
    family, numbers = reading
    as_written = [float(str(x)) for x in numbers]  # a single-precision 0.1 is meant as 0.1
    try:
        if family is dist.Beta:
            return models.beta(*as_written)
        if family is dist.Dirichlet:
            return models.dirichlet(*as_written)
        mean, sd, record_sd = as_written
        return models.normal(mean, sd, record_sd=record_sd)
    except ValueError as error:
        reason = f"The Pyro model's numbers are out of range: {str(error).removesuffix('.')}"
        raise UnsupportedModel(reason, _SUPPORTED) from error


def _placeholders(cells: int | None) -> list[Any]:
    """Return datasets of several lengths, odd so that swapping true and false cannot go unseen."""
    rng = np.random.default_rng(8)
    sizes = (3, 7, 129)
    if cells is None:
        return [rng.normal(scale=spread, size=n) for n, spread in zip(sizes, (1.0, 1e5, 1e2), strict=True)]
    constant = [np.zeros(5, int), np.full(5, cells - 1)]
    return [rng.integers(cells, size=n) for n in sizes] + constant


def _points(reading: Reading) -> list[Floats]:
    """Return latent values to try: in the middle of the prior, and far out, where a clamp would show."""
    family, numbers = reading
    if family is dist.Beta:
        return [np.array([share]) for share in (0.13, 0.46, 0.81, 0.002, 0.997)]
    if family is dist.Normal:
        mean, sd = float(numbers[0]), float(numbers[1])
        return [np.array([mean + k * sd]) for k in (-31.7, -1.3, 0.2, 2.1, 29.3)]
    rng = np.random.default_rng(9)
    return [0.1 / len(numbers) + 0.9 * rng.dirichlet(np.full(len(numbers), a)) for a in (1.0, 1.0, 0.1)]


def _log_joint(reading: Reading, point: Floats, data: Floats) -> tuple[Floats, Floats]:
    """Return the terms of the family's log prior density and of its log likelihood, computed in double precision."""
    family, numbers = reading
    weights = np.array(numbers, float)
    if family is dist.Normal:
        mean, sd, record_sd = weights
        return _normal_terms(point, mean, sd), _normal_terms(data, float(point[0]), record_sd)
    shares = np.array([point[0], 1.0 - point[0]]) if family is dist.Beta else point
    counts = np.bincount(data.astype(int), minlength=len(weights)).astype(np.float64)
    counts = counts[::-1] if family is dist.Beta else counts
    log_prior = np.concatenate([(weights - 1.0) * np.log(shares), -gammaln(weights), gammaln([weights.sum()])])
    return log_prior, counts * np.log(shares)


def _normal_terms(x: Floats, mean: float, sd: float) -> Floats:
    return np.array([-0.5 * np.sum(((x - mean) / sd) ** 2), -len(x) * np.log(sd), -0.5 * len(x) * np.log(2 * np.pi)])


def _drawn_with(records: Any) -> Floats:
    """Return what each record is drawn with, one row for each: a probability, probabilities, or a mean."""
    if isinstance(records, dist.Categorical):
        return _array(records.probs).reshape(-1, records.probs.shape[-1])
    return _array(records.loc if isinstance(records, dist.Normal) else records.probs).reshape(-1, 1)


def _unwrapped(fn: Any) -> Any:
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
