"""The utility of a synthetic set: how well students learn from it, beside controls made without any real record.

A student is a classifier trained on the synthetic set alone and judged on real test records (Triastcyn 2020, sections
3.6 and 7.5). Where an annotator labels the synthetic records, the student learns from the annotator too: noise that the
same annotator labels teaches a student as well. So no accuracy is given without its controls.

Everything here looks at real records, and no noise is added: it is for their owner. To publish it is a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.linalg import svdvals
from torch import Tensor
from torch.nn import functional

from tacita import _check
from tacita.synthesis.neighbours import Features, feature_vectors
from tacita.synthesis.students import (
    LEARNING_RATES,
    Labelled,
    LearningCurve,
    ValidationCurves,
    checked,
    drawn,
    learning_curve,
    student,
    validation_curves,
)

if TYPE_CHECKING:
    from tacita._check import Floats

Annotator = Callable[[Tensor], Tensor]  # from inputs to labels

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)  # of a learning curve

_ANNOTATED = 1024  # records labelled at once
_HELD_OUT = 0.2  # of the synthetic set, for validation

NOTES: dict[str, str] = {
    "student": "It does not show where the accuracy comes from: compare the controls, above all with an annotator. "
    "It is for one task and one kind of student; seeds are the student's, not the generator's.",
    "baseline": "It is no upper limit: there may be more synthetic records than real ones, and the student is small.",
    "controls": "With labels by chance, students of these guess. With an annotator, they show what the annotator alone "
    "teaches; a control made with more care would teach more.",
    "chance": "It is reached by always naming the most frequent class; a higher accuracy may still miss rare classes.",
    "logistic": "It shows that another kind of student can learn from the set, not that every kind can.",
    "frechet": "It compares means and covariances of features, nothing else, and knows no labels. Few records make it "
    "larger: compare it with the distance of as many real records, and not with distances published elsewhere.",
    "frechet_real": "Copies of training records would come as near as this; so it says nothing of privacy.",
    "learning": "Each point is one student: another one that saw as many records may differ by a point or two. "
    "Synthetic records cost nothing to make, so more of them are no sign of quality.",
    "validation": "Losses that fall together along a training are correlated, whatever the set is worth. For choosing "
    "between models look at the order of the students and at the accuracy lost by the choice; both rest on few "
    "students, which differ in their learning rate alone, and on the same real records.",
}


@dataclass(frozen=True, kw_only=True)
class Utility:
    """The utility of a synthetic set. It was computed from real records: it is for their owner.

    What each figure does not show is in `NOTES`, by the attribute's name. Accuracies are on real test records, one for
    each seed.

    Attributes:
        student: Accuracies after training on the synthetic set.
        baseline: The same on the real training set.
        controls: The same on records that come from no real one, by the control's name.
        chance: Share of the test set's most frequent class.
        logistic: Accuracy of a logistic regression trained on the synthetic set, and of one on the real training set.
        frechet: Fréchet distance of synthetic from test records.
        frechet_real: Fréchet distance of as many real training records from the same test records.
        frechet_records: How many records were compared with as many.
        learning: The learning curve.
        validation: The validation losses.
        annotated: Whether the labels of the controls, as of the synthetic set, are an annotator's.
        synthetic_records: How many synthetic records there are.
        test_records: How many test records the accuracies are shares of.
    """

    student: tuple[float, ...]
    baseline: tuple[float, ...]
    controls: Mapping[str, tuple[float, ...]]
    chance: float
    logistic: tuple[float, float]
    frechet: float
    frechet_real: float
    frechet_records: int
    learning: LearningCurve
    validation: ValidationCurves
    annotated: bool
    synthetic_records: int
    test_records: int

    @property
    def accuracy(self) -> float:
        """The students' mean accuracy."""
        return float(np.mean(self.student))

    @property
    def best_control(self) -> tuple[str, float]:
        """The control that taught most, and its students' mean accuracy."""
        means = {name: float(np.mean(found)) for name, found in self.controls.items()}
        best = max(means, key=means.__getitem__)
        return best, means[best]

    @property
    def margin(self) -> float:
        """How much more accurate the synthetic set's students are than the best control's, and than chance."""
        return self.accuracy - max(self.best_control[1], self.chance)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Utility:
        """Rebuild what `to_dict` wrote."""
        read = {
            "controls": {str(name): tuple(found) for name, found in data["controls"].items()},
            "learning": LearningCurve(**_as_tuples(data["learning"])),
            "validation": ValidationCurves(**_as_tuples(data["validation"])),
        }
        return cls(**{**_as_tuples(data), **read})


def measure_utility(
    synthetic: Labelled,
    real_train: Labelled,
    real_test: Labelled,
    classes: int,
    *,
    features: Features | None = None,
    annotator: Annotator | None = None,
    generator_control: Callable[[int], Labelled] | None = None,
    class_means: Tensor | None = None,
    seeds: int = 1,
    sizes: Sequence[int] = SIZES,
    learning_rates: Sequence[float] = LEARNING_RATES,
    steps: int | None = None,
    rng: int | np.random.Generator | None = None,
    progress: Callable[[str], None] | None = None,
) -> Utility:
    """Measure the utility of a synthetic set, beside its controls.

    Args:
        synthetic: What the generator put out, with labels; by the annotator if there is one.
        real_train: What the generator was trained on.
        real_test: Real records that it never saw; every accuracy is on these.
        classes: How many classes there are.
        features: A public feature map for the Fréchet distance. None takes the numbers of each record as they are.
        annotator: What labelled the synthetic set, if it was not the generator; it labels the controls too.
        generator_control: As `generator` in `controls`.
        class_means: As in `controls`.
        seeds: How many students are trained on each set.
        sizes: Of the learning curve, which ends with the whole synthetic set. Empty for no curve.
        learning_rates: Of the students whose validation losses are compared. Empty for none.
        steps: How long each student is trained; None for long enough.
        rng: A seed or a generator.
        progress: Called with what is measured next.

    Returns:
        The figures, for the data's owner.

    Raises:
        ValueError: If records are too few or of different shapes, labels are not classes, or real ones of one class.
    """
    sets, draws = _matching(synthetic, real_train, real_test, classes), np.random.default_rng(rng)
    report, size, (_, answers) = progress or (lambda _: None), len(sets[0][1]), sets[2]

    options = {"annotator": annotator, "generator": generator_control, "class_means": class_means}
    named_controls = partial(controls, sets[0][0].shape[1:], classes, size, **options)  # type: ignore[arg-type]
    streams = draws.spawn(_check.count("seeds", seeds, high=1000))
    found = _accuracies(sets, classes, named_controls, streams, steps, report)
    return Utility(
        student=found.pop("synthetic data"),
        baseline=found.pop("real data"),
        controls=found,
        chance=float(torch.bincount(answers).max()) / len(answers),
        annotated=annotator is not None,
        synthetic_records=size,
        test_records=len(answers),
        **_curves(sets, classes, sizes, learning_rates, steps, draws, report),
        **_distances(sets, classes, features, steps, draws, report),
    )


def controls(
    shape: Sequence[int],
    classes: int,
    count: int,
    *,
    rng: np.random.Generator,
    annotator: Annotator | None = None,
    generator: Callable[[int], Labelled] | None = None,
    class_means: Tensor | None = None,
) -> Iterator[tuple[str, Labelled]]:
    """Draw labelled records that come from no real one, set after set, by name.

    Uniform noise; Gaussian noise; for images smooth noise, which is patches of any contrast on a dark ground; records
    of the untrained generator; noise about released class means. Their labels are the annotator's. Without one they are
    drawn evenly and at random, and only the last two may have anything to do with their records.

    What an annotator alone teaches was measured with 10,000 records: smooth noise gave students of 88% on MNIST and 63%
    on Fashion-MNIST, from annotators of 98% and 87%; uniform noise one of 85% on Adult, all that the annotator had.

    Args:
        shape: Of one record.
        classes: How many classes there are.
        count: How many records a set has: as many as the synthetic set, to be fair.
        rng: Where they come from.
        annotator: What labelled the synthetic set.
        generator: Draws so many labelled records from the generator as it was before training.
        class_means: A mean record for each class, public or released with privacy; never the data's own.

    Returns:
        Names and labelled records, drawn when asked for.
    """
    size = _check.count("count", count)
    draws = torch.Generator().manual_seed(int(rng.integers(2**62)))
    labels = torch.randint(_check.count("classes", classes, low=2), (size,), generator=draws)
    if class_means is not None and class_means.shape != (classes, *shape):
        raise ValueError(f"class_means must have shape {(classes, *shape)}, got {tuple(class_means.shape)}.")
    low = 0.0 if len(shape) == 3 else -1.0
    middle, spread = (low + 1.0) / 2.0, (1.0 - low) / 4.0

    def noise() -> Tensor:
        return torch.randn(size, *shape, generator=draws)

    def named() -> Iterator[tuple[str, Labelled]]:
        yield "uniform noise", (low + (1.0 - low) * torch.rand(size, *shape, generator=draws), labels)
        yield "Gaussian noise", ((middle + spread * noise()).clamp(low, 1.0), labels)
        if len(shape) == 3:
            yield "smooth noise", (_smooth(size, shape, draws), labels)
        if generator is not None:
            yield "an untrained generator", generator(size)
        if class_means is not None:
            yield "noise about class means", ((class_means[labels] + spread * noise()).clamp(low, 1.0), labels)

    for name, (inputs, known) in named():
        yield name, checked(name, (inputs, known if annotator is None else _annotated(inputs, annotator)), classes)


def frechet(first: Tensor, second: Tensor, *, features: Features | None = None) -> float:
    """Return the Fréchet distance of two sets: that of two Gaussians with the means and covariances of their features.

    With means m, n and covariances S, T it is |m - n|² + tr S + tr T - 2 tr (S^½ T S^½)^½. Where S = A'A and T = B'B,
    the last trace is the sum of the singular values of AB'; A and B are triangular factors of the centred features, so
    no root of a covariance is taken and fewer records than features do no harm.

    It is biased upwards, by more the fewer records and the more features there are: two draws from one source are at a
    distance above 0. Compare it with the distance of two real sets of the same sizes.

    Args:
        first: At least two records.
        second: At least two records.
        features: A feature map that was not made from the data. None takes the numbers of each record as they are.

    Returns:
        The distance, at least 0.

    References:
        Dowson and Landau, J. Multivariate Analysis 12, 1982; Heusel et al., NeurIPS 2017, arXiv:1706.08500v6.

    Examples:
        >>> ends = torch.tensor([[-1.0], [1.0]])
        >>> round(frechet(ends, 3.0 + 2.0 * ends), 9)  # (3 - 0)² + (√8 - √2)²
        11.0
    """
    left = feature_vectors("first", first, features)
    right = feature_vectors("second", second, features, like=left)
    factors = _factor(left), _factor(right)
    shared = svdvals(factors[0] @ factors[1].T).sum()
    moved = np.square(left.mean(axis=0) - right.mean(axis=0)).sum()
    return max(0.0, float(moved + sum(np.square(factor).sum() for factor in factors) - 2.0 * shared))


# Parts of these.


def _accuracies(
    sets: Sequence[Labelled],
    classes: int,
    named_controls: Callable[..., Iterator[tuple[str, Labelled]]],
    streams: Sequence[np.random.Generator],
    steps: int | None,
    report: Callable[[str], None],
) -> dict[str, tuple[float, ...]]:
    """Return the accuracies of students of every set, one for each stream of randomness."""
    found: dict[str, tuple[float, ...]] = {}
    for own in streams:
        for name, data in chain([("synthetic data", sets[0]), ("real data", sets[1])], named_controls(rng=own)):
            report(f"A student of {name}")
            found[name] = (*found.get(name, ()), student(data, sets[2], classes, rng=own, steps=steps))
    return found


def _curves(
    sets: Sequence[Labelled],
    classes: int,
    sizes: Sequence[int],
    learning_rates: Sequence[float],
    steps: int | None,
    rng: np.random.Generator,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Return the learning curve and the validation losses."""
    (synthetic, train, test), size = sets, len(sets[0][1])
    report("The learning curve")
    fitting = [*(some for some in sizes if some < size), size] if sizes else []
    learning = learning_curve(synthetic, test, classes, fitting, rng=rng, real=train, steps=steps)
    report("Validation losses")
    kept, held_out = _parted(drawn(synthetic, size, rng))
    options: dict[str, Any] = {"learning_rates": learning_rates, "steps": steps}
    return {"learning": learning, "validation": validation_curves(kept, test, held_out, classes, rng=rng, **options)}


def _distances(
    sets: Sequence[Labelled],
    classes: int,
    features: Features | None,
    steps: int | None,
    rng: np.random.Generator,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Return what does not depend on the kind of student: a linear one, and the Fréchet distances."""
    report("Logistic regression and the Fréchet distance")
    compared = min(len(labels) for _, labels in sets)
    made, seen, unseen = (drawn(data, compared, rng)[0] for data in sets)
    linear = [student(data, sets[2], classes, rng=rng, steps=steps, kind="logistic") for data in sets[:2]]
    return {
        "logistic": tuple(linear),
        "frechet": frechet(made, unseen, features=features),
        "frechet_real": frechet(seen, unseen, features=features),
        "frechet_records": compared,
    }


def _factor(vectors: Floats) -> Floats:
    """Return A with A'A the covariance of the rows."""
    return np.asarray(np.linalg.qr((vectors - vectors.mean(axis=0)) / math.sqrt(len(vectors) - 1), mode="r"))


def _parted(data: Labelled) -> tuple[Labelled, Labelled]:
    held = math.ceil(_HELD_OUT * len(data[1]))
    return (data[0][held:], data[1][held:]), (data[0][:held], data[1][:held])


def _smooth(count: int, shape: Sequence[int], draws: torch.Generator) -> Tensor:
    """Return images of Gaussian noise drawn at a half, a quarter or an eighth of their size, and enlarged."""
    channels, high, wide = shape
    parts = []
    for scale, some in zip((2, 4, 8), torch.arange(count).tensor_split(3), strict=True):
        coarse = torch.randn(len(some), channels, max(4, high // scale), max(4, wide // scale), generator=draws)
        if len(some):
            parts.append(functional.interpolate(coarse, (high, wide), mode="bicubic"))
    contrast = 3.0 * torch.rand(count, 1, 1, 1, generator=draws)
    return (contrast * torch.cat(parts)).clamp(0.0, 1.0)


@torch.no_grad()
def _annotated(inputs: Tensor, annotator: Annotator) -> Tensor:
    return torch.cat([annotator(part) for part in torch.split(inputs, _ANNOTATED)])


def _as_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    def read(value: Any) -> Any:
        return tuple(map(read, value)) if isinstance(value, list | tuple) else value

    return {name: read(value) for name, value in data.items()}


def _matching(
    synthetic: Labelled, train: Labelled, test: Labelled, classes: int
) -> tuple[Labelled, Labelled, Labelled]:
    made = checked("synthetic", synthetic, classes, least=2)
    seen = checked("real_train", train, classes, least=2, like=made[0])
    unseen = checked("real_test", test, classes, least=2, like=made[0])
    for name, (_, labels) in (("real_train", seen), ("real_test", unseen)):
        if bool((labels == labels[0]).all()):
            raise ValueError(f"{name} has records of one class only; there is nothing to learn from it.")
    return made, seen, unseen
