"""How fast accounting is, as ratios against peers measured in the same run.

Run by `make bench`. Times are medians; the machine's own speed cancels in the ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import gammaln, logsumexp

from tacita import BayesianAccountant
from tacita.accounting import NORM_LEVELS, ORDERS, record_curves, worst_curve
from tacita.accounting.shares import RATES
from tacita.accounting.worst import _pld

RATE, NOISE = 0.01, 1.0


def median_time(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of `work`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def direct_theorem_3(norms: np.ndarray, orders: list[int]) -> np.ndarray:
    """Theorem 3 as one would write it with scipy: log-sum-exp over k, vectorised over the records."""
    costs = []
    for order in orders:
        n = order + 1
        k = np.arange(n + 1.0)
        log_pmf = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * np.log(RATE) + (n - k) * np.log1p(-RATE)
        costs.append(logsumexp(log_pmf + (k * k - k) / 2 * (norms[:, None] / NOISE) ** 2, axis=1))
    return np.stack(costs)


def step_against_direct_evaluation() -> None:
    """`acc.step` for 1000 records against 64 orders of Theorem 3, and its growth with m."""
    rng = np.random.default_rng(0)
    times = {}
    for m in (1000, 10_000, 100_000):
        norms = np.minimum(rng.lognormal(np.log(0.2), 0.5, m), 1.0)
        accountant = BayesianAccountant(sample_rate=RATE, noise_multiplier=NOISE)
        accountant.step(norms)
        times[m] = median_time(lambda a=accountant, n=norms: a.step(n), 200)
        if m == 1000:
            direct = median_time(lambda n=norms: direct_theorem_3(n, list(ORDERS[:64])), 5)
            print(f"one step, 1000 records, 64 orders: direct / tacita = {direct / times[m]:.0f}  (goal: 100)")
    print(f"growth of a step with m: x10 records = x{times[10_000] / times[1000]:.1f}, ", end="")
    print(f"x100 = x{times[100_000] / times[1000]:.0f}")


def whole_run_against_direct_evaluation() -> None:
    """A (2000, 1000) run with its moments at the end, against Theorem 3 at every step."""
    rng = np.random.default_rng(0)
    norms = np.minimum(rng.lognormal(np.log(0.2), 0.5, (2000, 1000)), 1.0)

    def ours() -> object:
        accountant = BayesianAccountant(sample_rate=RATE, noise_multiplier=NOISE)
        for row in norms:
            accountant.step(row)
        return accountant.guarantee(delta=1e-5, estimator="student")

    theirs = 2000 * median_time(lambda: direct_theorem_3(norms[0], list(ORDERS[:64])), 5)
    print(f"2000 steps and the papers' figure: direct / tacita = {theirs / median_time(ours, 1):.0f}")


def certified_end_to_end() -> None:
    """The command on a (2000, 1000) norms file, start-up included."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "norms.npy"
        np.save(path, np.minimum(rng.lognormal(np.log(0.2), 0.5, (2000, 1000)), 1.0))
        run = [sys.executable, "-c", "from tacita.cli import main; main()", "account", "--json", "--norms", str(path)]
        command = [*run, "--noise-multiplier", str(NOISE), "--sample-rate", str(RATE)]
        work = median_time(lambda: subprocess.run(command, check=True, capture_output=True), 1)
        start = median_time(lambda: subprocess.run([sys.executable, "-c", "import dp_accounting"], check=True), 1)
    print(f"(2000, 1000) norms file certified end to end: {work:.1f} s = {work / start:.1f} x importing dp-accounting")


def many_record_curves() -> None:
    """60,000 different records over 15 levels, against dp-accounting composing one of them."""
    rng = np.random.default_rng(0)
    levels, steps, records = np.linspace(16, 256, 15).astype(int), 3500, 60_000
    base = np.minimum(rng.lognormal(np.log(0.2), 0.8, records), 1.0)
    weights = np.exp(-((np.log(NORM_LEVELS[levels]) - np.log(base)[:, None]) ** 2) / 0.18)
    counts = np.zeros((records, len(NORM_LEVELS)), dtype=np.int64)
    counts[:, levels] = rng.multinomial(steps, weights / weights.sum(axis=1, keepdims=True))

    def epsilons() -> object:
        return record_curves(counts, sample_rate=256 / 60_000, noise_multiplier=1.0).epsilon(1e-5)

    def figures() -> object:
        curves = record_curves(counts, sample_rate=256 / 60_000, noise_multiplier=1.0)
        return curves.delta(np.linspace(0.0, 2.0, 100)), curves.tpr(np.array(RATES))

    def one_by_one() -> None:
        curves = record_curves(counts, sample_rate=256 / 60_000, noise_multiplier=1.0)
        for record in range(records):
            curves.profile(record)

    ours, whole, each = (median_time(work, 1) for work in (epsilons, figures, one_by_one))
    print(f"60,000 records' profiles and tests, as arrays: {whole / ours:.2f} x their epsilons' time (goal: 2)")
    print(f"one `Profile` after the other, none kept: {each / ours:.2f} x")
    one = median_time(lambda: (_pld.cache_clear(), _pld(256 / 60_000, 1.0, steps).get_epsilon_for_delta(1e-5)), 3)
    print(f"60,000 records' curves: {ours:.1f} s (goal: 10 s); one by one / tacita = {60_000 * one / ours:.0f}")


def one_curve() -> None:
    """One worst-case curve against dp-accounting."""
    ours = median_time(
        lambda: (worst_curve.cache_clear(), worst_curve(2000, sample_rate=RATE, noise_multiplier=NOISE).epsilon(1e-5)),
        5,
    )
    theirs = median_time(lambda: (_pld.cache_clear(), _pld(RATE, NOISE, 2000).get_epsilon_for_delta(1e-5)), 3)
    print(f"one worst-case curve: dp-accounting / tacita = {theirs / ours:.0f}")


if __name__ == "__main__":
    step_against_direct_evaluation()
    whole_run_against_direct_evaluation()
    one_curve()
    many_record_curves()
    certified_end_to_end()
