"""Membership inference: from a classifier's answers alone, can an outsider tell who was trained on?

The score is that of RMIA (Zarifzadeh, Liu & Shokri 2024, arXiv:2312.03262): how much more confident the model is in a
record's true class than reference models are, half of which had the record and half of which had not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import beta, binomtest, norm, rankdata
from torch import Tensor, nn

from tacita import _check
from tacita.assumptions import assume
from tacita.audit.canaries import CERTAIN
from tacita.guarantee import Guarantee, attack_success, round_up_text
from tacita.label import AttackState, Chart, Finding, Series
from tacita.report.numbers import success_text

Floats = NDArray[np.float64]
Records = tuple[Tensor, Tensor]
Interval = tuple[float, float]

FEWEST = 10  # Members, and others: with fewer, no interval says anything.
_RATES = (0.001, 0.01)
_TEMPERATURE = 2.0  # Softer than the model's own answers: keeps sure answers apart.
_POINTS = 200
_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class Caught:
    """How many members are found when false alarms are rare.

    Attributes:
        asked: The share of others that may be taken for members.
        resolved: False if there are too few others to see so small a share: then no false alarm at all is allowed.
        false_alarms: How many others were taken for members.
        limit: The true share of false alarms is below this with 95% confidence (an order statistic of the others).
        share: Share of the members that were found.
        interval: Its 95% interval (Clopper-Pearson); the threshold is set by the others alone.
    """

    asked: float
    resolved: bool
    false_alarms: int
    limit: float
    share: float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a membership attack achieved.

    Attributes:
        auc: Chance that a member scores higher than one who is not; 0.5 is chance.
        auc_interval: Its 95% interval, approximate: the wider of DeLong's and Hanley and McNeil's at either end.
        success: Share of right guesses, members and others being equally many. Each half of the records is guessed by
            the threshold that is best for the other half, so no guess has seen its answer.
        success_interval: Its 95% interval (Clopper-Pearson); see `compare_scores`.
        caught: Members found at 0.1% and at 1% false alarms.
        roc: (false alarms, members found) as shares, at most 200 points.
        records: How many members were attacked; as many others were.
        references: How many reference models there were.
        epsilon: The worst case that was claimed, None for no claim.
        delta: Its delta.
    """

    auc: float
    auc_interval: Interval
    success: float
    success_interval: Interval
    caught: tuple[Caught, ...]
    roc: tuple[tuple[float, float], ...]
    records: int
    references: int = 0
    epsilon: float | None = None
    delta: float = 0.0

    @property
    def allowed(self) -> float | None:
        """The largest success that the claim allows."""
        return None if self.epsilon is None else attack_success(self.epsilon, self.delta)

    @property
    def distinguishable(self) -> bool:
        """Whether members can be told from others better than by chance: the AUC's interval excludes 0.5."""
        return not self.auc_interval[0] <= 0.5 <= self.auc_interval[1]

    @property
    def exceeds_claim(self) -> bool:
        """Whether the success is above what the claim allows, at one false alarm in a million."""
        guesses = 2 * self.records
        right = round(self.success * guesses)
        low = float(beta.ppf(1.0 - CERTAIN, right, guesses - right + 1)) if right else 0.0
        return self.allowed is not None and low > self.allowed

    @property
    def state(self) -> AttackState:
        """`warning` if the claim is exceeded, or if there is none and members stand out; `open` if there is none."""
        if self.exceeds_claim or (self.epsilon is None and self.distinguishable):
            return "warning"
        return "open" if self.epsilon is None else "not-refuted"

    @property
    def lower_bound(self) -> Guarantee:
        """The smallest epsilon that allows the success seen, from its lower confidence limit; a reading of one run."""
        low = self.success_interval[0]
        epsilon = math.log((low - self.delta) / (1.0 - low)) if low > self.delta else 0.0
        return Guarantee(
            kind="empirical_lower",
            epsilon=max(0.0, epsilon),
            delta=self.delta,
            method=f"membership inference, {self.references} reference models",
            scope="reading",
            assumptions=(assume("drawn-alike"), assume("independent-guesses")),
        )

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        low, high = self.success_interval
        parts = [
            f"The best guess is right {self.success:.1%} of the time (95% interval {_range_text(low, high)})",
            "blind guessing is right 50%",
        ]
        if self.allowed is not None:
            parts.append(f"the claim allows at most {success_text(self.allowed)}")
        if self.exceeds_claim:
            verdict = "This is more than the claim allows."
        elif self.auc_interval[1] < 0.5:
            verdict = "Members score below others, which training does not explain: the two differ in something else."
        elif self.distinguishable:
            verdict = "Members can be told from others better than by chance."
        else:
            verdict = "This attack could not tell members from others."
        return f"{'; '.join(parts)}. {verdict}"

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        low, high = self.auc_interval
        ranked = (f"{self.auc:.3f}", f"{math.floor(low * 1e3) / 1e3:.3f} to {math.ceil(high * 1e3) / 1e3:.3f}")
        rows = [
            ("Guesses that are right", f"{self.success:.1%}", _range_text(*self.success_interval)),
            ("Chance that a member scores above someone else (AUC)", *ranked),
            *dict.fromkeys((_caught_text(c), f"{c.share:.1%}", _range_text(*c.interval)) for c in self.caught),
            ("Epsilon needed to explain it, at least", round_up_text(self.lower_bound.epsilon, up=False), ""),
        ]
        return Finding(
            key="membership",
            heading="Can an outsider tell who was trained on?",
            state=self.state,
            sentence=self.sentence,
            columns=("Measured", "Result", "95% interval"),
            rows=tuple(rows),
            chart=self._chart(),
            notes=self._notes(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            **asdict(self),
            "state": self.state,
            "allowed": self.allowed,
            "distinguishable": self.distinguishable,
            "exceeds_claim": self.exceeds_claim,
            "lower_bound": self.lower_bound.to_dict(),
            "sentence": self.sentence,
        }

    def _chart(self) -> Chart | None:
        points = tuple((x, y) for x, y in self.roc if x > 0.0 and y > 0.0)
        if len(points) < 2:
            return None
        least = min(min(point) for point in points)
        middle = max((point for point in points if point[0] <= 0.1), default=points[0])
        return Chart(
            heading="Members found, over false alarms",
            caption="The further the attack lies above chance, the more it learns. The left edge is where it hurts.",
            description=f"At {middle[0]:.1%} false alarms the attack finds {middle[1]:.1%} of the members, "
            f"and chance {middle[0]:.1%}.",
            x_title="false alarms (share of others)",
            y_title="members found (share)",
            series=(
                Series(hue="anyone", name="Attack", points=points),
                Series(hue="plain", name="Chance", points=((least, least), (1.0, 1.0))),
            ),
            log=True,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"{self.records:,} members and as many others were attacked, with {self.references} reference models.",
            "It assumes that members and others were drawn alike: any other difference would be mistaken for a leak.",
            "Each half of the records is guessed by a threshold learned from the other half: no guess saw its answer.",
            "It describes this one run and this attack. It does not prove that no better attack exists, nor a bound on "
            "epsilon for the training: all guesses are about one model, and so are not independent.",
        ]
        poor = [caught for caught in self.caught if not caught.resolved]
        if poor:
            rates = " and ".join(f"{100 * caught.asked:g}%" for caught in poor)
            notes.append(
                f"With {self.records:,} others, false alarms as rare as {rates} cannot be seen. Members found without "
                "any false alarm are given instead: the true share of false alarms is then below "
                f"{math.ceil(1e4 * poor[0].limit) / 1e2:.2f}%, with 95% confidence."
            )
        return tuple(notes)


def membership(
    model: nn.Module,
    members: Records,
    others: Records,
    *,
    train: Callable[[Tensor, Tensor], nn.Module],
    references: int = 4,
    epsilon: float | None = None,
    delta: float = 0.0,
    size: int = 2000,
    rng: int | np.random.Generator | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Membership:
    """Attack a classifier: tell its training records from others by its answers.

    Reference models are trained on random halves of all the records, two and two on opposite halves, so that an even
    number of them has every record in exactly half. If there are many more members than others, they see fewer
    records than the attacked model did, which makes the attack weaker.

    Args:
        model: The attacked model, which answers with one logit for each class. Only its answers are used.
        members: (inputs, int64 targets) that it was trained on.
        others: Records like them that it was not trained on.
        train: Takes inputs and targets and returns a model, trained as the attacked one was.
        references: How many reference models to train. Even numbers are best.
        epsilon: The worst case claimed (add or remove a record), to compare with. None, or infinity, for no claim.
        delta: Its delta.
        size: At most so many members, and as many others, are attacked.
        rng: A seed or a generator, for choosing records and halves. `train` has its own randomness.
        progress: Called with (done, of) after every reference model.
        stop: Asked between reference models; True goes on with those there are.

    Raises:
        ValueError: If targets are not classes, records do not fit the model, or there are too few.

    References:
        Zarifzadeh, Liu and Shokri, ICML 2024, arXiv:2312.03262; with references that all records share, their test
        orders records as the ratio of confidences does. The likelihood ratios of Carlini et al., S&P 2022,
        arXiv:2112.03570, told less on small sets with up to eight reference models.
    """
    planned = _check.count("references", references, high=10_000)
    most = _check.count("size", size, low=FEWEST)
    claim = _claim(epsilon, delta)
    inputs, targets = _pool(members, others)
    generator = np.random.default_rng(rng)
    count = min(most, len(members[1]), len(others[1]))
    chosen = np.concatenate(
        [
            generator.choice(len(members[1]), count, replace=False),
            generator.choice(len(others[1]), count, replace=False) + len(members[1]),
        ]
    )
    picked = torch.from_numpy(chosen).to(targets.device)
    attacked = inputs[picked], targets[picked]
    answers = _confidence(model, attacked, "The model")
    compared: list[Floats] = []
    halves = _halves(len(targets), generator)
    while len(compared) < planned and not (compared and stop is not None and stop()):
        kept = torch.from_numpy(next(halves)).to(targets.device)
        compared.append(_confidence(train(inputs[kept], targets[kept]), attacked, "A reference model"))
        if progress is not None:
            progress(len(compared), planned)
    scores = _relative_confidence(answers, np.stack(compared))
    return compare_scores(
        scores[:count], scores[count:], references=len(compared), epsilon=claim, delta=delta, rng=generator
    )


def compare_scores(
    score_members: Any,
    score_others: Any,
    *,
    references: int = 0,
    epsilon: float | None = None,
    delta: float = 0.0,
    rng: int | np.random.Generator | None = None,
) -> Membership:
    """Say how well scores tell members from others, for any attack whose higher scores mean a member.

    Args:
        score_members: One finite score for each member.
        score_others: As many, of records that were not trained on.
        references: How many reference models made them.
        epsilon: The worst case claimed; None for no claim.
        delta: Its delta.
        rng: A seed or a generator: which records are in which half.

    Guarantee:
        For independent records and a threshold fixed beforehand, the interval of the success holds in at least 95%
        of cases (the right guesses vary at most as a binomial does, Hoeffding 1956). Here the halves lend each other
        their thresholds, which is not covered by that proof; for scores that tell nothing, simulation found the
        lower limit above 50% in 1.4 to 2.5% of cases. The intervals of `caught` are exact for independent records.
        Equal scores count half in the AUC, and are never told apart by a guess.

    Examples:
        >>> found = compare_scores(range(5, 25), range(20), rng=0)
        >>> round(found.auc, 3), found.records, found.state
        (0.719, 20, 'warning')
    """
    claim = _claim(epsilon, delta)
    high, low = _scores("score_members", score_members), _scores("score_others", score_others)
    if len(high) != len(low):
        raise ValueError(f"Members and others must be equally many, got {len(high)} and {len(low)}; draw alike.")
    auc, auc_interval = _area(high, low)
    right = _right_guesses(high, low, np.random.default_rng(rng))
    return Membership(
        auc=auc,
        auc_interval=auc_interval,
        success=right / (2 * len(high)),
        success_interval=_exact(right, 2 * len(high)),
        caught=tuple(_caught(high, low, rate) for rate in _RATES),
        roc=_roc(high, low),
        records=len(high),
        references=references,
        epsilon=claim,
        delta=float(delta),
    )


# The statistics.


def _area(members: Floats, others: Floats) -> tuple[float, Interval]:
    """Return the area under the ROC curve, ties counted half, and its interval.

    Hanley and McNeil's variance, taken at the limit itself (Newcombe 2006), is the rank-sum test at 0.5 and does not
    shrink to nothing at 0 or 1; DeLong's makes no assumption on the shape. Each end is the wider of both.
    """
    size = len(members)
    ranks = rankdata(np.concatenate([members, others]))
    beaten = (ranks[:size] - rankdata(members)) / size
    beating = 1.0 - (ranks[size:] - rankdata(others)) / size
    area = float(beaten.mean())
    width = float(norm.ppf(0.975)) * math.sqrt((beaten.var(ddof=1) + beating.var(ddof=1)) / size)
    low = max(0.0, min(_area_limit(area, size), area - width))
    high = min(1.0, max(1.0 - _area_limit(1.0 - area, size), area + width))
    return area, (low, high)


def _area_limit(area: float, size: int) -> float:
    quantile = float(norm.ppf(0.975))

    def excess(limit: float) -> float:
        spread = limit * (1.0 - limit) / size**2
        spread *= 1.0 + (size - 1.0) * ((1.0 - limit) / (2.0 - limit) + limit / (1.0 + limit))
        return (area - limit) ** 2 - quantile**2 * spread

    return float(brentq(excess, 0.0, min(area, 1.0 - 1e-9))) if area > 0.0 else 0.0


def _right_guesses(members: Floats, others: Floats, rng: np.random.Generator) -> int:
    """Count right guesses, each half of the records guessed by the threshold that is best for the other half."""
    members, others = rng.permutation(members), rng.permutation(others)
    first, second = slice(None, len(members) // 2), slice(len(members) // 2, None)
    right = 0
    for learn, guess in ((first, second), (second, first)):
        threshold = _best_threshold(members[learn], others[learn])
        right += int((members[guess] >= threshold).sum() + (others[guess] < threshold).sum())
    return right


def _best_threshold(members: Floats, others: Floats) -> float:
    values = np.unique(np.concatenate([members, others]))
    missed = np.searchsorted(np.sort(members), values)
    spared = np.searchsorted(np.sort(others), values)
    return float(values[np.argmax(spared - missed)])


def _caught(members: Floats, others: Floats, rate: float) -> Caught:
    size = len(others)
    allowed = math.floor(rate * size + 1e-9)
    threshold = np.sort(others)[size - 1 - allowed]
    found, alarms = int((members > threshold).sum()), int((others > threshold).sum())
    return Caught(
        asked=rate,
        resolved=allowed > 0,
        false_alarms=alarms,
        limit=float(beta.ppf(0.95, allowed + 1, size - allowed)),
        share=found / len(members),
        interval=_exact(found, len(members)),
    )


def _exact(hits: int, tries: int) -> Interval:
    interval = binomtest(hits, tries).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


def _roc(members: Floats, others: Floats) -> tuple[tuple[float, float], ...]:
    """Return corners of the ROC curve from (0, 0) to (1, 1), thinned evenly in the logarithm of false alarms."""
    values = np.unique(np.concatenate([members, others]))[::-1]
    alarms = len(others) - np.searchsorted(np.sort(others), values)
    found = len(members) - np.searchsorted(np.sort(members), values)
    grid = np.unique(np.geomspace(1, len(others), _POINTS - 2).round())
    at = np.searchsorted(alarms, np.concatenate([[0.0], grid]), side="right") - 1
    kept = np.unique(at[at >= 0])
    points = zip((alarms[kept] / len(others)).tolist(), (found[kept] / len(members)).tolist(), strict=True)
    return ((0.0, 0.0), *points)


# The score.


def _relative_confidence(answers: Floats, references: Floats) -> Floats:
    """Return log p - log mean p', for log odds of p under the model and of p' under each reference model."""
    doubt = expit(-references).mean(axis=0)
    sure = np.log1p(-np.minimum(doubt, 0.5))
    unsure = logsumexp(log_expit(references), axis=0) - math.log(len(references))
    return np.asarray(log_expit(answers) - np.where(doubt < 0.5, sure, unsure), dtype=np.float64)


def _confidence(model: nn.Module, records: Records, who: str) -> Floats:
    """Return the log odds of every record's true class, at the attack's temperature."""
    inputs, targets = records
    logits = _answers(model, inputs).double().cpu() / _TEMPERATURE
    if logits.ndim != 2 or len(logits) != len(targets) or logits.shape[1] < 2:
        raise ValueError(f"{who} must answer with one logit for each class and record, got {tuple(logits.shape)}.")
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{who} gave answers that are not finite; lower its learning rate and train it again.")
    if int(targets.max()) >= logits.shape[1]:
        raise ValueError(f"targets must be class numbers below {logits.shape[1]}, the number of logits.")
    truth = targets.cpu()[:, None]
    rest = logits.scatter(1, truth, -math.inf).logsumexp(1)
    return np.asarray((logits.gather(1, truth)[:, 0] - rest).numpy(), dtype=np.float64)


def _answers(model: nn.Module, inputs: Tensor) -> Tensor:
    if not isinstance(model, nn.Module):
        raise TypeError(f"A model must be a torch module, got {type(model).__name__}; train must return the model.")
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return torch.cat([model(part) for part in torch.split(inputs, _BATCH)])
    finally:
        for part, mode in modes:
            part.training = mode


def _halves(size: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    while True:
        half = rng.permutation(size) < size // 2
        yield half
        yield ~half


# What comes in.


def _pool(members: Records, others: Records) -> Records:
    for name, (inputs, targets) in (("members", members), ("others", others)):
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise TypeError(f"{name} must be a pair of tensors, inputs and targets.")
        if targets.dtype != torch.int64 or targets.ndim != 1:
            raise ValueError(
                f"The targets of {name} must be class numbers, int64 of shape (n,), got {targets.dtype} of shape "
                f"{tuple(targets.shape)}; models that predict amounts cannot be attacked this way."
            )
        if len(inputs) != len(targets):
            raise ValueError(f"{name} must have as many inputs as targets, got {len(inputs)} and {len(targets)}.")
        if len(targets) < FEWEST:
            raise ValueError(f"At least {FEWEST} {name} are needed for an attack, got {len(targets)}.")
        if int(targets.min()) < 0:
            raise ValueError(f"The targets of {name} must be class numbers, which are not negative.")
    if members[0].shape[1:] != others[0].shape[1:] or members[0].dtype != others[0].dtype:
        raise ValueError("members and others must have inputs of one shape and one type.")
    return torch.cat([members[0], others[0]]), torch.cat([members[1], others[1]])


def _scores(name: str, values: Any) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < FEWEST:
        raise ValueError(f"{name} must hold at least {FEWEST} scores, got shape {scores.shape}.")
    if not np.isfinite(scores).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return scores


def _claim(epsilon: float | None, delta: float) -> float | None:
    _check.in_range("delta", delta, 0.0, 1.0)
    if epsilon is None:
        return None
    claim = _check.in_range("epsilon", epsilon, 0.0, math.inf)
    return claim if math.isfinite(claim) else None


# Words.


def _range_text(low: float, high: float) -> str:
    return f"{math.floor(low * 1e3 + 1e-9) / 10:.1f}% to {math.ceil(high * 1e3 - 1e-9) / 10:.1f}%"


def _caught_text(caught: Caught) -> str:
    alarms = f"{100 * caught.asked:g}% false alarms" if caught.resolved else "no false alarm seen"
    return f"Members found, {alarms}"
