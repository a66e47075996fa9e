"""A leak test of the accountant itself: could its reading of the records reveal who was in the training set?

The Bayesian accountant reads gradient norms, and the papers read distances between gradients. Both are measured here
for records inside and outside the training set. If a model treats the two alike, they could be exchanged, so every
p-value comes from exchanging them at random (a permutation test). That is exact for any distribution, and for
distances too, although pairs that share a record are not independent.

References:
    Triastcyn, Data-Aware Privacy-Preserving Machine Learning, 2020, section 5.5.2 and figure 5.7.
    Hoeffding, Probability inequalities for sums of bounded random variables, 1963, section 5 (two-sample statistics).
    Székely and Rizzo, Energy statistics, 2013.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._pytree import tree_map

from tacita import _check
from tacita.audit.attack import Session
from tacita.audit.exchange import Floats, compare_distances, compare_numbers, corrected
from tacita.audit.leak_result import LEVEL, Leak
from tacita.audit.models import record_gradients
from tacita.audit.target import FEWEST, SkippedError, Target
from tacita.label import Finding
from tacita.training.gradients import Loss, Parameters, record_norms
from tacita.training.records import Records, record_loss
from tacita.training.step import check_clip_norm

_FEWEST = 10  # records a side
_MOST_NORMS, _MOST_GRADIENTS = 2000, 500  # records a side
_MOST_WEIGHTS = 2**14  # gradients that are longer are sketched to this many numbers


def leak(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    epsilon_inside: ArrayLike | None = None,
    epsilon_outside: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Compare records inside the training set with records outside.

    Args:
        inside: Clipped gradients over the clip norm, one row for each record, or only their norms.
        outside: The same for records that were not trained on.
        epsilon_inside: Each followed training record's own epsilon, from `BayesianAccountant.epsilons`.
        epsilon_outside: The same for the held-out records.
        rng: Chooses whom to compare if there are many, and the exchanges. None is seeded by the operating system.

    Returns:
        What differs, how large the difference is, and how large a difference may have been missed.

    Guarantee:
        If inside and outside are exchangeable, `differs` is true with probability at most 5%, whatever the
        distributions. The intervals of `success` cover, all together, with at least 95% if the records of a side are
        independent. Finding no difference proves nothing: `missed` says how large one may still be.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = leak(0.5 * rng.random(400), rng.random(400), rng=rng)
        >>> found.differs, found.state
        (True, 'warning')
    """
    rng = rng or np.random.default_rng()
    sides = _matrix("inside", inside), _matrix("outside", outside)
    if sides[0].ndim != sides[1].ndim or sides[0].shape[1:] != sides[1].shape[1:]:
        raise ValueError(
            f"inside and outside must be both norms or gradients of one length, got shapes {sides[0].shape} and "
            f"{sides[1].shape}."
        )
    norms = [side if side.ndim == 1 else np.linalg.norm(side, axis=1) for side in sides]
    norms = [_check.norms(name, np.where(n < 1.0 + 1e-6, n.clip(max=1.0), n)) for name, n in _named(norms)]
    gradients = [_some(side, _MOST_GRADIENTS, rng) for side in sides] if sides[0].ndim == 2 else None
    return _compare(norms, gradients, _epsilons(epsilon_inside, epsilon_outside), rng)


def leak_test(
    loss: Loss,
    parameters: Mapping[str, Tensor],
    inside: Any,
    outside: Any,
    *,
    clip_norm: float,
    epsilon_inside: ArrayLike | None = None,
    epsilon_outside: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Measure gradients of records at the given parameters and compare inside with outside, as `leak` does.

    Norms are measured on at most 2000 records a side, distances on at most 500. Gradients of more than 16,384 weights
    are sketched: every weight goes to one of 16,384 sums with a random sign, the same for all records, which keeps
    distances to about 1% and the p-values exact.

    Args:
        loss: Of the parameters and one record, such as `tacita.training.records.record_loss` makes.
        parameters: Where to differentiate, usually the trained model's.
        inside: Records that were trained on; any dataset that `PrivateTraining` takes.
        outside: Records like them that were not.
        clip_norm: The training's.
        epsilon_inside: As in `leak`.
        epsilon_outside: As in `leak`.
        rng: As in `leak`.

    Returns:
        As `leak`.
    """
    rng = rng or np.random.default_rng()
    c, epsilons = check_clip_norm(clip_norm), _epsilons(epsilon_inside, epsilon_outside)
    fixed = {name: p.detach() for name, p in parameters.items()}
    device = next(iter(fixed.values())).device
    sketch = _sketch(sum(p.numel() for p in fixed.values()), rng)
    norms, gradients = [], []
    for name, dataset in _named((inside, outside)):
        records = Records(dataset, device)
        _require(name, len(records))
        chosen = _some(np.arange(len(records)), _MOST_NORMS, rng)
        batch = records.take(chosen)
        norms.append(np.minimum(record_norms(loss, fixed, batch).numpy() / c, 1.0))
        few = tree_map(lambda t: t[:_MOST_GRADIENTS], batch)
        gradients.append(np.concatenate([sketch(g) for g in _clipped_gradients(loss, fixed, few, c)]))
    return _compare(norms, gradients, epsilons, rng)


class LeakAttack:
    """A leak test of the accountant: does its reading of the records reveal who took part?"""

    activity = "leak test of the reading"

    def check(self, target: Target) -> None:
        """Require the model, and enough records on both sides."""
        target.trained()
        if min(len(side[-1]) for side in target.records()) < FEWEST:
            raise SkippedError(f"it compares at least {FEWEST} records a side")

    def run(self, session: Session) -> Leak:
        """Compare gradients at the trained model's parameters."""
        target = session.target
        model, loss_fn = target.trained()
        inside, outside = target.record_epsilons or (None, None)
        return leak_test(
            record_loss(model, loss_fn),
            {name: p for name, p in model.named_parameters() if p.requires_grad},
            *target.records(),
            clip_norm=target.plan.clip_norm,
            epsilon_inside=inside,
            epsilon_outside=outside,
            rng=session.rng(5),
        )

    def finding(self, result: Leak, session: Session) -> Finding:
        """Return the result for the owner's label."""
        return result.finding()


def _compare(
    norms: list[Floats], gradients: list[Floats] | None, epsilons: list[Floats] | None, rng: np.random.Generator
) -> Leak:
    numbers = {"gradient norm": norms} if epsilons is None else {"gradient norm": norms, "own epsilon": epsilons}
    made = [
        compare_numbers(quantity, [_some(side, _MOST_NORMS, rng) for side in sides], LEVEL / len(numbers), rng)
        for quantity, sides in numbers.items()
    ]
    if gradients is None:
        return Leak(comparisons=corrected(made))
    tests = 3 * len(made) + 3
    distances, papers = compare_distances(gradients, LEVEL / tests, rng)
    return Leak(comparisons=corrected([*made, distances]), papers=papers)


def _clipped_gradients(loss: Loss, parameters: Parameters, records: Any, clip_norm: float) -> Iterator[Floats]:
    """Yield clipped gradients over the clip norm, some records at a time; zero for one that is not finite."""
    for rows in record_gradients(loss, parameters, records):
        norm = rows.norm(dim=1)
        factor = torch.where(norm.isfinite(), 1.0 / norm.clamp_min(clip_norm), 0.0)
        yield (rows.nan_to_num(0.0, 0.0, 0.0) * factor[:, None]).cpu().numpy()


def _sketch(weights: int, rng: np.random.Generator) -> Any:
    if weights <= _MOST_WEIGHTS:
        return lambda gradients: gradients
    place = torch.from_numpy(rng.integers(_MOST_WEIGHTS, size=weights))
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=weights))

    def sketch(gradients: Floats) -> Floats:
        sums = torch.zeros(len(gradients), _MOST_WEIGHTS, dtype=torch.float64)
        return np.asarray(sums.index_add_(1, place, torch.from_numpy(gradients) * sign))

    return sketch


def _named(sides: Any) -> Iterator[tuple[str, Any]]:
    return zip(("inside", "outside"), sides, strict=True)


def _matrix(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise TypeError(f"{name} must be an array of norms, or of gradients with a row for each record.")
    _require(name, len(array))
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; a record whose gradient is not finite contributes zero.")
    return array.astype(np.float64)


def _require(name: str, records: int) -> None:
    if records < _FEWEST:
        raise ValueError(f"{name} must hold at least {_FEWEST} records, got {records}; fewer show no difference.")


def _epsilons(inside: ArrayLike | None, outside: ArrayLike | None) -> list[Floats] | None:
    if inside is None and outside is None:
        return None
    if inside is None or outside is None:
        raise ValueError("Give epsilon_inside and epsilon_outside together: one alone has nothing to compare with.")
    sides = [_matrix("epsilon_inside", inside), _matrix("epsilon_outside", outside)]
    if any(side.ndim != 1 or side.min() < 0.0 for side in sides):
        raise ValueError("epsilon_inside and epsilon_outside must hold one number of at least 0 for each record.")
    return sides


def _some(rows: Any, most: int, rng: np.random.Generator) -> Any:
    """Return at most `most` rows, in random order."""
    return rows[rng.permutation(len(rows))[:most]]
