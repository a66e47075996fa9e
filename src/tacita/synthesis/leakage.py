"""Does a synthetic set give its training records away? Two tests of what was released, whatever the generator was.

Both compare records that were trained on with as many that were not. Neither proves that nothing leaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tacita._numbers import round_up_text
from tacita.audit.scores import FEWEST, Membership, compare_scores
from tacita.profile import Profile
from tacita.synthesis.neighbours import Features, check_records, feature_vectors, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Floats

_SWAPS = 9_999


@dataclass(frozen=True, kw_only=True)
class HoldoutTest:
    """Where the synthetic points lie: nearer to the training records, or to records that were held out?

    Attributes:
        share: Share of the synthetic points whose nearest record is a training record.
        p_value: How often chance alone gives a share as large, if the synthetic set does not depend on who of all these
            records was trained on. Small values mean a leak.
        null_interval: The 2.5% and 97.5% quantiles of the share by chance; its mean is one half.
        records: How many training records were compared; as many were held out.
        points: How many synthetic points there are.
    """

    share: float
    p_value: float
    null_interval: tuple[float, float]
    records: int
    points: int

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        low, high = self.null_interval
        found = (
            f"{self.share:.1%} of the {self.points:,} synthetic points are nearer to one of {self.records:,} training "
            f"records than to one of as many that were held out; by chance it is 50%, mostly {low:.1%} to {high:.1%} "
            f"(p = {round_up_text(self.p_value)})."
        )
        if self.p_value < 0.01:
            return f"{found} The synthetic set leans towards the records it was trained on."
        return f"{found} This test saw no lean towards the training records; it does not prove that there is none."

    def __str__(self) -> str:
        return self.sentence


def holdout_test(
    training: Tensor,
    held_out: Tensor,
    synthetic: Tensor,
    *,
    features: Features | None = None,
    rng: np.random.Generator | None = None,
) -> HoldoutTest:
    """Test whether synthetic points lie nearer to training records than to records that were held out.

    Each synthetic point goes to its nearest record, of both kinds together; among equally near ones, to a random one.
    So each record gets a count that does not depend on its kind, and the share is the training records' part of all
    counts. If the kinds do not matter, they are a random half of the records: the null distribution is that of random
    halves, drawn 9,999 times. Only how many records of each count are in a half matters, and those numbers are
    multivariate hypergeometric.

    Args:
        training: Records that the generator was trained on, at least 10.
        held_out: Records drawn alike that it never saw, at least 10. The larger of the two is thinned at random.
        synthetic: What the generator put out.
        features: A feature map, for distances that mean something. None takes the numbers as they are.
        rng: Draws who is compared, and the halves; None is seeded by the operating system.

    Returns:
        The share, and how probable it is by chance.

    Raises:
        ValueError: If there are too few records, or the features do not fit together.

    Guarantee:
        If training and held-out records are exchangeable given the synthetic set, p_value is at most p with probability
        at most p, for every p.

    Examples:
        >>> import torch
        >>> records = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
        >>> holdout_test(records[:100], records[100:], records[:50], rng=np.random.default_rng(0)).share
        1.0
    """
    generator = rng or np.random.default_rng()
    records, points = _compared(training, held_out, synthetic, features, generator)
    size = len(records) // 2
    order = generator.permutation(len(records))
    winners = order[nearest(points, records[order], 1)[1][:, 0]]
    counts = np.bincount(winners, minlength=len(records))
    nearer = int(counts[:size].sum())
    levels, how_many = np.unique(counts, return_counts=True)
    null = generator.multivariate_hypergeometric(how_many, size, size=_SWAPS, method="marginals") @ levels
    low, high = np.quantile(null, [0.025, 0.975], method="inverted_cdf") / len(points)
    return HoldoutTest(
        share=nearer / len(points),
        p_value=(1 + int((null >= nearer).sum())) / (1 + _SWAPS),
        null_interval=(float(low), float(high)),
        records=size,
        points=len(points),
    )


def generator_membership(
    synthetic: Tensor,
    training: Tensor,
    held_out: Tensor,
    *,
    features: Features | None = None,
    reference: Tensor | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    profile: Profile | None = None,
    rng: np.random.Generator | None = None,
) -> Membership:
    """Attack a generator by its released set: tell members from others by how near the set comes to them.

    The score is minus the log distance to the nearest synthetic point, -log s. With `reference` it is b log t - log s,
    t being the distance to the nearest reference record: a ratio of densities as in DOMIAS (van Breugel et al. 2023,
    arXiv:2302.12580), by one nearest neighbour, so that a record is not called a member for lying where everybody does.
    The exponent b is the slope of log s over log t among all attacked records, without their kinds; b = 1 is the plain
    ratio, which is less sensitive for generators that blur.

    Args:
        synthetic: What the generator put out.
        training: Records that it was trained on, at least 10.
        held_out: Records drawn alike that it never saw, at least 10. The larger of the two is thinned at random.
        features: A feature map, for distances that mean something. None takes the numbers as they are.
        reference: Other records of the population, neither trained on nor held out; None for none.
        epsilon: The worst case claimed for the generator (add or remove a record). None, or infinity, for no claim.
        delta: Its delta.
        profile: Its whole privacy curve; None takes what the pair (epsilon, delta) allows.
        rng: Draws who is compared; None is seeded by the operating system.

    Raises:
        ValueError: If there are too few records, the features do not fit together, or `reference` holds the records
            that are attacked.

    Returns:
        How well members were distinguished from others, and whether the claim allows it.
    """
    generator = rng or np.random.default_rng()
    records, points = _compared(training, held_out, synthetic, features, generator)
    size = len(records) // 2
    found = _log_positive(nearest(records, points, 1)[0][:, 0])
    scores = -found
    if reference is not None:
        population = feature_vectors("reference", reference, features, like=points)
        gaps = nearest(records, population, 1)[0][:, 0]
        _check_apart(gaps[:size] == 0.0, gaps[size:] == 0.0)
        expected = _log_positive(gaps)
        scores += _slope(expected, found) * expected
    return compare_scores(scores[:size], scores[size:], epsilon=epsilon, delta=delta, profile=profile, rng=generator)


def _compared(
    training: Tensor, held_out: Tensor, synthetic: Tensor, features: Features | None, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the vectors of equally many records, those trained on first, and of the synthetic points."""
    points = feature_vectors("synthetic", synthetic, features)
    check_records("training", training, least=FEWEST)
    check_records("held_out", held_out, least=FEWEST)
    kinds = [
        feature_vectors("training", training, features, like=points),
        feature_vectors("held_out", held_out, features, like=points),
    ]
    size = min(map(len, kinds))
    return np.concatenate([kind[rng.permutation(len(kind))[:size]] for kind in kinds]), points


def _check_apart(training_found: NDArray[np.bool_], held_out_found: NDArray[np.bool_]) -> None:
    """Refuse a reference that holds one kind of the attacked records: it would decide the attack by itself."""
    if abs(training_found.mean() - held_out_found.mean()) > 0.5:
        kind = "training" if training_found.mean() > 0.5 else "held-out"
        raise ValueError(f"reference holds the {kind} records; pass records that are neither trained on nor held out.")


def _log_positive(gaps: Floats) -> Floats:
    """Return log distances, zero counted as half the smallest positive one: nearer than any, and finite."""
    positive = gaps[gaps > 0.0]
    return np.log(np.maximum(gaps, positive.min() / 2.0 if len(positive) else 1.0))


def _slope(inputs: Floats, outputs: Floats) -> float:
    spread = float(inputs.var())
    return float(((inputs - inputs.mean()) * outputs).mean()) / spread if spread > 0.0 else 0.0
