"""The papers' figures that need no training, measured again: figures 5.1 to 5.5 of the thesis (1, 3, 4, 5 of ICML).

    python -m experiments.papers.run                  # every row that results.jsonl does not hold; minutes on one core
    python -m experiments.papers.run --quick          # smaller panels, one seed, into quick.jsonl
    python -m experiments.papers.run "figure 5.4 *"   # some rows, by pattern
    python -m experiments.papers.page                 # the page and the figures of the documentation

Settings are those of the authors' public notebook (synthetic_experiments.ipynb in
github.com/AlekseiTriastcyn/bayesian-differential-privacy), which fixes what the thesis leaves open: 50 gradients of
1,000 Weibull(0.5) entries a step, noise of standard deviation 2Cσ, distances between all pairs, the single order 16
or 24. Nothing was tuned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from scipy.stats import chi2

from experiments.rows import Jobs, Row, main
from tacita import BayesianAccountant, worst_case
from tacita.accounting import ORDERS, epsilon_from_costs
from tacita.mechanisms import sampled_gaussian_cost
from tacita.papers import CODED_GAMMA, coded_costs, coded_epsilons

Floats = NDArray[np.float64]

RATE, DELTA = 1 / 1000, 1e-5
BATCH, ENTRIES, SHAPE = 50, 1000, 0.5
STEPS, CHECKPOINTS = 100, (1, 10, 25, 50, 75, 100)
SIGMAS = tuple(round(0.55 + 0.05 * i, 2) for i in range(17))
SPARSE = SIGMAS[::4]  # where records' own curves are computed
GROWTH = (50, 500, 5000, 50_000)
PERCENTS = (50, 90, 99)
SMALL_ORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
SETTINGS = "as in the authors' notebook; nothing tuned"


def gradients(rng: np.random.Generator, count: int) -> Floats:
    """Return synthetic gradients, one a row."""
    return rng.weibull(SHAPE, (count, ENTRIES))


def norms_of(rng: np.random.Generator, count: int) -> Floats:
    """Return the norms of so many synthetic gradients."""
    parts = [np.linalg.norm(gradients(rng, min(1000, count - done)), axis=1) for done in range(0, count, 1000)]
    return np.concatenate(parts)


def public_quantile(quantile: float) -> float:
    """Return the quantile of the norms' law, from draws that no row uses: the law is public here."""
    return float(np.quantile(norms_of(np.random.default_rng(987654321), 20_000), quantile))


def clipped(vectors: Floats, clip_norm: float) -> Floats:
    """Return the vectors, scaled down to the clip norm."""
    return vectors / np.maximum(1.0, np.linalg.norm(vectors, axis=1, keepdims=True) / clip_norm)


def coded_dp(ratio: float, *, order: int, steps: int) -> float:
    """Return the papers' DP figure: the moments accountant at one order."""
    cost = steps * sampled_gaussian_cost(order, sample_rate=RATE, ratio=ratio)
    return float(epsilon_from_costs(np.atleast_1d(cost), [order], delta=DELTA, notion="strong"))


def coded_bdp(distances: list[Floats], stddevs: list[float], *, orders: tuple[int, ...], power: int) -> Floats:
    """Return the authors' accountant after each step."""
    pairs = zip(distances, stddevs, strict=True)
    costs = [coded_costs(d, sample_rate=RATE, stddev=s, power=power, orders=orders) for d, s in pairs]
    return coded_epsilons(costs, delta=DELTA, orders=orders, gamma=CODED_GAMMA)


def sound(norms: Floats, *, noise_multiplier: float, steps: int) -> Row:
    """Return what holds for clipped norms that stay the same: worst case, records' own, `band`, certified shares."""
    accountant = BayesianAccountant(sample_rate=RATE, noise_multiplier=noise_multiplier, levels="static")
    accountant.step(norms, steps=steps)
    shares = accountant.shares(delta=DELTA, percents=PERCENTS)
    return {
        "worst": accountant.worst_case(delta=DELTA).epsilon,
        "median": float(np.median(accountant.epsilons(delta=DELTA))),
        "band": accountant.guarantee(delta=DELTA).epsilon,
        "shares": {str(percent): epsilon for percent, epsilon in shares.items()},
    }


def noise_against_epsilon(quantile: float, *, clip: bool, seeds: int, panel: int) -> Row:
    """Return figures 5.1 (clipped for both) and 5.2 (clipped for DP only): one step, the order 24."""
    bdp = []
    for seed in range(seeds):
        drawn = gradients(np.random.default_rng(seed), BATCH)
        bound = float(np.quantile(np.linalg.norm(drawn, axis=1), quantile))
        distances = pdist(clipped(drawn, bound) if clip else drawn)
        one = [coded_bdp([distances], [2 * bound * s], orders=(24,), power=1)[0] for s in SIGMAS]
        bdp.append([float(epsilon) for epsilon in one])
    # A record moves the sum by at most the clip norm: C with noise 2Cσ is a noise multiplier of 2σ. Where the thesis
    # does not clip we clip at 2C, which touches few records and makes the worst case finite.
    bound, factor = public_quantile(quantile), 1.0 if clip else 2.0
    norms = norms_of(np.random.default_rng(1000), panel) / (factor * bound)
    held = np.minimum(norms, 1.0)
    return {
        "sigmas": SIGMAS,
        "coded_dp": [coded_dp(1 / sigma, order=24, steps=1) for sigma in SIGMAS],
        "coded_bdp": bdp,
        "best_dp": [min(coded_dp(1 / sigma, order=order, steps=1) for order in ORDERS) for sigma in SIGMAS],
        "sound_sigmas": SPARSE,
        "sound": [sound(held, noise_multiplier=2 * sigma / factor, steps=1) for sigma in SPARSE],
        "touched": float((norms > 1.0).mean()),
        "panel": panel,
    }


def steps_against_epsilon(quantile: float, *, seeds: int, panel: int) -> Row:
    """Return figures 5.3 and 5.5: 100 steps, the order 16; contributions are not clipped for BDP."""
    curves: dict[str, list[list[float]]] = {"coded_bdp": [], "coded_naive": []}
    best: dict[str, list[float]] = {"coded_bdp": [], "coded_naive": []}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        batches = [gradients(rng, BATCH) for _ in range(STEPS)]
        stddevs = [2.0 * float(np.quantile(np.linalg.norm(batch, axis=1), quantile)) for batch in batches]
        distances = [pdist(batch) for batch in batches]
        for name, power in (("coded_bdp", STEPS), ("coded_naive", 1)):
            curves[name].append(coded_bdp(distances, stddevs, orders=(16,), power=power).tolist())
            best[name].append(float(coded_bdp(distances, stddevs, orders=SMALL_ORDERS, power=power)[-1]))
    bound = public_quantile(quantile)
    norms = norms_of(np.random.default_rng(1000), panel)
    held = np.minimum(norms / (2.0 * bound), 1.0)
    many = norms_of(np.random.default_rng(2000), GROWTH[-1]) / (2.0 * bound)
    return {
        "steps": STEPS,
        **curves,
        "best": best,
        "coded_dp": [coded_dp(1.0, order=16, steps=t) for t in range(1, STEPS + 1)],
        "best_dp": min(coded_dp(1.0, order=order, steps=STEPS) for order in ORDERS),
        "sound_steps": CHECKPOINTS,
        "sound": [sound(held, noise_multiplier=1.0, steps=t) for t in CHECKPOINTS],
        "touched": float((norms > 2.0 * bound).mean()),
        "kept": without_estimator(held, power=STEPS),
        "product": without_estimator(held, power=1),
        "growth": {str(count): without_estimator(many[:count], power=STEPS) for count in GROWTH},
        "panel": panel,
    }


def without_estimator(ratios: Floats, *, power: int) -> float:
    """Return the figure at order 16 with the sample's mean in the place of the expectation.

    Args:
        ratios: The records' norms over the noise's standard deviation.
        power: 100 if each record keeps its norm for all steps; 1 for the product of the steps' expectations.
    """
    costs = power * sampled_gaussian_cost(16, sample_rate=RATE, ratio=ratios)
    total = np.atleast_1d(STEPS / power * (np.logaddexp.reduce(costs) - np.log(len(costs))))
    return float(epsilon_from_costs(total, [16], delta=DELTA, notion="strong"))


def orders_against_epsilon(clip_norm: float) -> Row:
    """Return figure 5.4: one distance C at noise 1, 10,000 steps, every order; the exact figure beside."""
    rate, steps = 64 / 60000, 10_000
    orders = sorted({*range(1, 513), *ORDERS})
    costs = [steps * float(sampled_gaussian_cost(order, sample_rate=rate, ratio=clip_norm)) for order in orders]
    by_order = [(cost - np.log(DELTA)) / order for cost, order in zip(costs, orders, strict=True)]
    exact = worst_case(sample_rate=rate, noise_multiplier=1 / clip_norm, steps=steps, delta=DELTA).epsilon
    place = int(np.argmin(by_order))
    return {
        "orders": orders[: 1 + orders.index(512)],
        "epsilons": [float(epsilon) for epsilon in by_order[: 1 + orders.index(512)]],
        "best_order": orders[place],
        "best": float(by_order[place]),
        "best_to_32": float(min(by_order[:32])),
        "exact": exact,
    }


def seen_by_its_variance(parameters: int, clients: int = 100) -> Row:
    """Return how well the noise's variance tells whether one client more took part: the total variation, exactly."""
    ratio = (clients + 1) / clients
    cut = parameters * np.log(ratio) / (1.0 - 1.0 / ratio)  # where the two chi-squared densities cross
    seen = chi2.cdf(cut, parameters) - chi2.cdf(cut / ratio, parameters)
    settings = "exact; 100 participants, three sizes of networks"
    return {"parameters": parameters, "clients": clients, "total_variation": float(seen), "settings": settings}


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    seeds, small, large = (1, 500, 1000) if quick else (5, 2000, 10_000)
    named: dict[str, Callable[[], Row]] = {}

    def add(name: str, job: Callable[..., Row], *values: float, seeds: int = 0, **options: float) -> None:
        about = {"seeds": list(range(seeds)), "settings": SETTINGS}
        given = {**options, "seeds": seeds} if seeds else options
        named[name] = lambda: {**about, **job(*values, **given)}

    for q in (0.01, 0.50, 0.99):
        add(f"figure 5.1 C={q:.2f}", noise_against_epsilon, q, clip=True, seeds=seeds, panel=small)
    for q in (0.05, 0.50, 0.95):
        add(f"figure 5.2 C={q:.2f}", noise_against_epsilon, q, clip=False, seeds=seeds, panel=small)
    for q in (0.05, 0.25, 0.75, 0.95):
        add(f"figure 5.3 C={q:.2f}", steps_against_epsilon, q, seeds=seeds, panel=large)
    for clip_norm in (0.1, 0.7, 1.0):
        add(f"figure 5.4 C={clip_norm}", orders_against_epsilon, clip_norm)
    for parameters in (2_000, 26_000, 1_700_000):
        add(f"variance {parameters}", seen_by_its_variance, parameters)
    return named


if __name__ == "__main__":
    main("papers", rows)
