"""Which mechanism releases a posterior best? The two figures of the poster, drawn again with more mechanisms.

    python experiments/posterior_release/run.py figures   # about two minutes; writes distances.jsonl and two figures
    python experiments/posterior_release/run.py coverage  # about two minutes; writes coverage.jsonl

Figures: prior beta(1, 1), epsilon 0.8, delta 1e-8, datasets with a share of 0.5 (balanced) or 0.1 of ones. The distance
is the expected Hellinger distance between the true posterior and the released one, exact, by enumeration. `spent` is
the epsilon at delta 1e-8 that the mechanism really uses, from its certificate.

Coverage: how often 95% intervals hold the true share, over 20,000 repetitions: with shares drawn from the prior, and
with the share fixed. `aware` is the noise-aware posterior, `plug_in` takes the noisy count for the true one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacita.mechanisms.finite import FiniteCurve
from tacita.posterior import beta, exponential, geometric, laplace
from tacita.posterior.enumeration import distances, neighbours
from tacita.posterior.mechanisms import Mechanism, Statistic
from tacita.posterior.noise_aware import cells_posterior
from tacita.posterior.plans import plan_release

HERE = Path(__file__).parent
ASSETS = HERE.parents[1] / "docs" / "assets"
EPSILON, DELTA, PRIOR = 0.8, 1e-8, beta(1, 1)
SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000, 2900)
SHARES = {"balanced": 0.5, "unbalanced": 0.1}
REPETITIONS = 20_000
BUDGET = {"epsilon": EPSILON, "delta": DELTA}

MECHANISMS: dict[str, Mechanism] = {
    "Laplace, naive (2)": laplace(epsilon=EPSILON),
    "Laplace, histogram (1)": laplace(epsilon=EPSILON, sensitivity="histogram"),
    "exponential, global, as published": exponential(**BUDGET, sensitivity="global", calibration="nominal"),
    "exponential, smooth, as published": exponential(**BUDGET, calibration="nominal"),
    "exponential, smooth, exact": exponential(**BUDGET),
    "… squared Hellinger, exact": exponential(**BUDGET, score="squared_hellinger"),
    "… total variation, exact": exponential(**BUDGET, score="total_variation"),
    "… Jensen-Shannon, exact": exponential(**BUDGET, score="jensen_shannon"),
    "… LeCam, exact": exponential(**BUDGET, score="lecam"),
    "… KL, exact": exponential(**BUDGET, score="kl"),
    "geometric": geometric(epsilon=EPSILON),
}


def table(mechanism: Mechanism, n: int) -> NDArray[np.float64]:
    """Return the mechanism's probabilities, a row for each true count."""
    plan = plan_release(mechanism, Statistic(2, n, prior=PRIOR))
    return plan.source.clipped_rows(n) if plan.table is None else plan.table


def measured() -> Iterator[dict[str, object]]:
    """Yield one line for each mechanism, size and share."""
    for n in SIZES:
        gaps = distances(PRIOR, n, "hellinger")
        for name, mechanism in MECHANISMS.items():
            rows = table(mechanism, n)
            spent = FiniteCurve(rows, neighbours(2, n)).epsilon(DELTA)
            for data, share in SHARES.items():
                k = round(share * n)
                yield {"mechanism": name, "n": n, "data": data, "distance": rows[k] @ gaps[k], "spent": round(spent, 4)}


def draw(lines: list[dict[str, object]], data: str) -> None:
    """Draw one figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), layout="constrained")
    axis = figure.subplots()
    styles = {
        "Laplace": ("#8a8a8a", "--"),
        "exponential": ("#b3403a", "-"),
        "…": ("#cc8f5a", ":"),
        "geometric": ("#1f6f8b", "-"),
    }
    markers = iter("os^DvPX*<>h")
    for name in MECHANISMS:
        points = [(line["n"], line["distance"]) for line in lines if (line["mechanism"], line["data"]) == (name, data)]
        color, style = next(value for start, value in styles.items() if name.startswith(start))
        width = 3 if name == "geometric" else 1.3
        axis.plot(*zip(*points, strict=True), style, color=color, marker=next(markers), ms=5, lw=width, label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(SIZES, [str(n) for n in SIZES])
    axis.set_xticks([], minor=True)
    axis.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0.02", "0.05", "0.1", "0.2", "0.5", "1"])
    axis.set_yticks([], minor=True)
    axis.set_xlabel("number of records")
    axis.set_ylabel("expected Hellinger distance from the true posterior")
    title = f"{data.capitalize()} data, epsilon {EPSILON}, delta {DELTA:g}, prior {PRIOR}"
    axis.set_title(title, loc="left", weight="bold")
    axis.grid(color="#d9d9d9", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside lower center")
    figure.savefig(ASSETS / f"posterior-{data}.svg", metadata={"Date": None, "Creator": "tacita"})


def coverage() -> Iterator[dict[str, object]]:
    """Yield one line for each size, epsilon and way of drawing shares."""
    rng = np.random.default_rng(0)
    for n in (20, 100, 1000):
        for epsilon in (0.05, 0.1, 0.8):
            plan = plan_release(geometric(epsilon=epsilon), Statistic(2, n, prior=PRIOR))
            known: dict[int, object] = {}
            for share in (None, 0.5, 0.1):
                truth = rng.beta(*PRIOR.alphas, REPETITIONS) if share is None else np.full(REPETITIONS, share)
                outputs = plan.source.draw(rng.binomial(n, truth).tolist())
                for z in set(outputs) - set(known):
                    made = cells_posterior(plan, PRIOR, (z,), n, n)
                    known[z] = made.interval(0.95)
                ends = np.array([known[z] for z in outputs])
                counts = np.clip(outputs, 0, n)
                naive = stats.beta(1 + counts, 1 + n - counts).interval(0.95)
                yield {
                    "n": n,
                    "epsilon": epsilon,
                    "share": share,
                    "aware": float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))),
                    "plug_in": float(np.mean((naive[0] <= truth) & (truth <= naive[1]))),
                }


def main() -> None:
    """Write the lines, and the figures."""
    what = sys.argv[1] if sys.argv[1:] in (["figures"], ["coverage"]) else sys.exit(__doc__)
    lines = []
    for line in measured() if what == "figures" else coverage():
        print(json.dumps(line), flush=True)
        lines.append(line)
    name = "distances.jsonl" if what == "figures" else "coverage.jsonl"
    (HERE / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for data in SHARES if what == "figures" else ():
        draw(lines, data)


if __name__ == "__main__":
    main()
