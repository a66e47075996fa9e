"""Mechanisms with finitely many inputs and outputs, and their exact privacy curves.

A mechanism is a table: row k holds the probabilities of the outputs when the data lead to input k. Its privacy curve
is the largest hockey-stick divergence between rows that neighbouring datasets lead to, over every such pair and both
directions: nothing is estimated and no lemma is trusted. Rows are float64 and are meant exactly as they stand (the
probability is an entry over its row's exact sum), so that a sampler can draw from what was certified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita._search import boundary

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

ROUND_OFF = 2.0**-44  # more than all rounding in a sum of at most 2^20 probabilities, and in row sums near 1
_BLOCK = 2**21  # entries at once: a few buffers of 16 MB


class FiniteCurve:
    """The exact privacy curve of a table of probabilities.

    Guarantee:
        For every pair of neighbouring inputs, both ways, P(S) ≤ e^ε Q(S) + delta(ε) for every set of outputs S.

    Examples:
        >>> coin = FiniteCurve(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([[0, 1]]))
        >>> round(coin.epsilon(0.0), 6), round(coin.delta(0.5), 6)
        (1.098612, 0.33782)
    """

    def __init__(self, rows: Floats, pairs: Counts) -> None:
        table = np.asarray(rows, dtype=np.float64)
        if table.ndim != 2 or not (np.isfinite(table).all() and (table >= 0.0).all()):
            raise ValueError("rows must be a table of probabilities: finite and not negative.")
        if not np.abs(table.sum(axis=1) - 1.0).max() <= 1e-14:
            raise ValueError("every row must add up to 1.")
        self.rows = table
        self.pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)

    def delta(self, epsilon: float) -> float:
        """Return δ(ε), rounded up."""
        eps = _check.in_range("epsilon", epsilon, 0.0, math.inf)
        worst = float(self._divergences(eps).max(initial=0.0))
        if worst == 0.0 and eps >= self._largest_loss():
            return 0.0
        return min(1.0, worst + ROUND_OFF)

    def epsilon(self, delta: float = 0.0) -> float:
        """Return the smallest ε with δ(ε) ≤ δ, rounded up; infinite if there is none."""
        target = _check.in_range("delta", delta, 0.0, 1.0)
        if target < ROUND_OFF:  # no delta but 0 is that small
            return self._largest_loss()
        if self.delta(0.0) <= target:
            return 0.0
        worst = {int(self._divergences(0.0).argmax())}
        while True:  # a few pairs decide; every pair is looked at before an answer is given
            found = FiniteCurve(self.rows, self.pairs[sorted(worst)])._smallest_epsilon(target)
            if self.delta(found) <= target or math.isinf(found):
                return found
            worst.add(int(self._divergences(found).argmax()))

    def _smallest_epsilon(self, target: float) -> float:
        low, high = 0.0, 1.0
        while self.delta(high) > target:
            low, high = high, 2.0 * high
            if high > 1000.0:
                return self._largest_loss()
        return boundary(lambda eps: self.delta(eps) <= target, fails=low, at=high, rtol=1e-9, xtol=1e-12)

    def _divergences(self, epsilon: float) -> Floats:
        factor = math.exp(min(epsilon, 709.0))
        found = []
        for p, q in self._blocks():
            ways = [np.maximum(one - factor * other, 0.0).sum(axis=1) for one, other in ((p, q), (q, p))]
            found.append(np.maximum(*ways))
        return np.concatenate(found) if found else np.zeros(0)

    def _largest_loss(self) -> float:
        worst = 1.0
        for p, q in self._blocks():
            if ((p > 0.0) != (q > 0.0)).any():
                return math.inf
            with np.errstate(invalid="ignore", over="ignore"):
                ratios = p / q  # 0 / 0 is an output that neither has
            worst = max(worst, float(np.nanmax(ratios, initial=1.0)), 1.0 / float(np.nanmin(ratios, initial=1.0)))
        return math.log(worst) + 3e-14 if worst > 1.0 else 0.0  # the rows' sums are 1 but for round-off

    def _blocks(self) -> Iterator[tuple[Floats, Floats]]:
        size = max(1, _BLOCK // self.rows.shape[1])
        for start in range(0, len(self.pairs), size):
            block = self.pairs[start : start + size]
            yield self.rows[block[:, 0]], self.rows[block[:, 1]]


def product_pair(first: Floats, second: Floats) -> Floats:
    """Return the pair of rows of two independent outputs, from the pair of each.

    Examples:
        >>> product_pair(np.array([[1.0], [1.0]]), np.array([[0.5, 0.5], [0.25, 0.75]]))
        array([[0.5 , 0.5 ],
               [0.25, 0.75]])
    """
    return np.asarray(np.einsum("ri,rj->rij", first, second).reshape(2, -1))
