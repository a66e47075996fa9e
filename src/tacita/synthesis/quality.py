"""The quality page: how useful a released set is and what it leaks, each figure with what it does not show.

Everything is measured on the records, without noise: the page is for their owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacita import runs
from tacita._numbers import delta_text, epsilon_text, round_up_text
from tacita.audit import Membership
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.synthesis.features import measuring_features
from tacita.synthesis.gan import sample
from tacita.synthesis.generators.kind import Maker
from tacita.synthesis.influence import AverageCase, average_case
from tacita.synthesis.labels import label_of_run, typical_of_run
from tacita.synthesis.leakage import HoldoutTest, generator_membership, holdout_test
from tacita.synthesis.neighbours import feature_vectors, nearest
from tacita.synthesis.outliers import OutlierControl, release_size
from tacita.synthesis.pages import Picture, Section, grid_png, page, two_lines
from tacita.synthesis.recipes import Task
from tacita.synthesis.students import Labelled, drawn
from tacita.synthesis.utility import NOTES, Utility, measure_utility

_MOST = 10_000  # records of a set that students and distances look at
_ATTACKED = 2_000  # members, and as many others
_MEASURED = 5_000  # records of the average-case measure
_PAIRS = 12
_OUTLIER_DELTA, _OUTLIER_THRESHOLD, _OUTLIER_CHANCE = 1e-8, 1e-5, 0.1


@dataclass(frozen=True, eq=False)
class Quality:
    """What was measured of a released set. For the owner."""

    utility: Utility
    average: AverageCase
    holdout: HoldoutTest
    membership: Membership

    @property
    def metrics(self) -> dict[str, str]:
        """The main figures, for the owner's label."""
        found, (best, control) = self.utility, self.utility.best_control
        return {
            "accuracy of a student": f"{found.student:.2%} on real test records; trained on the real data, "
            f"{found.baseline:.2%}; on the best control ({best}), {control:.2%}",
            "Fréchet distance": f"{found.frechet:.3g} in public features; real data {found.frechet_real:.3g}",
            "average-case measure": f"mu {self.average.chebyshev:.3g} (Chebyshev), {self.average.student:.3g} (mean), "
            f"gamma {self.average.gamma:g}: a measure, not a guarantee",
            "holdout test": f"{self.holdout.share:.1%} nearer to training records, p = "
            f"{round_up_text(self.holdout.p_value)}",
        }


def measure(maker: Maker, synthetic: Labelled, *, claim: Guarantee, report: Callable[[str], None]) -> Quality:
    """Measure utility and leakage of a released set, on at most 10,000 records of each kind.

    Args:
        maker: What made the set, with the data.
        synthetic: The released set.
        claim: The label's worst case; its epsilon is infinite if nothing is claimed.
        report: Called with what is measured next, in words.

    Returns:
        What was found. For the data's owner.
    """
    rng = np.random.default_rng(maker.task.recipe.seed)
    task = maker.task.one_each(rng)
    features = measuring_features(task.shape)
    made, real, held = (_some(data, _MOST, rng) for data in (synthetic, task.train, task.held))
    utility = measure_utility(
        made,
        real,
        held,
        len(task.classes),
        features=features,
        annotator=maker.annotate,
        generator_control=lambda count: sample(maker.untrained, count, rng=np.random.default_rng(task.recipe.seed)),
        rng=rng,
        report=report,
    )
    report("The average-case measure")
    average = average_case(_some(real, _MEASURED, rng)[0], _some(made, _MEASURED, rng)[0], features=features)
    report("The holdout test")
    holdout = holdout_test(task.train[0], task.held[0], made[0], features=features, rng=rng)
    report("A membership attack")
    count = min(_ATTACKED, len(task.train[1]), len(task.held[1]))
    members, others = (_some(data, count, rng)[0] for data in (task.train, task.held))
    membership = generator_membership(
        made[0],
        members,
        others,
        features=features,
        epsilon=claim.epsilon,
        delta=claim.delta,
        profile=claim.curve,
        rng=rng,
    )
    return Quality(utility, average, holdout, membership)


def _some(data: Labelled, most: int, rng: np.random.Generator) -> Labelled:
    return data if len(data[1]) <= most else drawn(data, most, rng)


def outlier_control(typical: Callable[[float], float]) -> OutlierControl:
    """Return how many samples may be released, given the typical epsilon as a function of delta."""
    return release_size(
        chance=_OUTLIER_CHANCE,
        epsilon=typical(_OUTLIER_DELTA),
        delta=_OUTLIER_DELTA,
        threshold=_OUTLIER_THRESHOLD,
    )


def write_quality(folder: Path, maker: Maker, synthetic: Labelled, report: Callable[[str], None]) -> None:
    """Measure a released set; write quality.json and quality.html, and the main figures to run.json.

    Args:
        folder: The run directory.
        maker: What made the set, with the data.
        synthetic: The released set.
        report: Called with what is measured next, in words.
    """
    label, run = label_of_run(folder), runs.Run(folder)
    found = measure(maker, synthetic, claim=label.worst, report=report)
    run.write(facts=run.facts.with_metrics(found.metrics).to_dict())
    typical = typical_of_run(folder)
    outliers = None if typical is None else outlier_control(typical)
    document: dict[str, Any] = {
        "schema": runs.SCHEMA,
        "utility": asdict(found.utility),
        "average_case": {k: v for k, v in vars(found.average).items() if k != "values"},
        "holdout": asdict(found.holdout),
        "findings": [found.membership.finding().to_dict()],
        "outliers": None if outliers is None else outliers.to_dict(),
    }
    runs.write_json(folder, "quality.json", document)
    lead = (
        f"{label.purpose} {len(synthetic[1]):,} records were released. Here is what they are worth, and what was found "
        "to leak; every figure says what it does not show."
    )
    sections = list(_sections(maker.task, synthetic, found, label, outliers))
    runs.write_text(folder, "quality.html", page(label.title, lead, sections, owner=True))


def _sections(
    task: Task, synthetic: Labelled, found: Quality, label: Label, outliers: OutlierControl | None
) -> Iterator[Section]:
    if len(task.shape) == 3:
        yield _pictures(synthetic, task)
    worst = label.worst.epsilon
    unbounded = "Nothing is promised: the generator was fitted to the data without noise."
    text, note = unbounded if math.isinf(worst) else label.worst.claim, "The privacy label says what it rests on."
    yield Section("What is promised", text, note=note, state="warning" if worst > 1e3 else "holds")
    yield _students(found.utility)
    if found.utility.learning.sizes:
        yield _learning(found.utility)
    if found.utility.validation.learning_rates:
        yield _validation(found.utility)
    yield _distances(found.utility)
    yield _leaks(found)
    if len(task.shape) == 3:
        yield _nearest(task, synthetic)
    if outliers is not None:
        yield Section("How many records to release", _how_many(outliers, label), note="Thesis, section 7.4.2.")


def _how_many(outliers: OutlierControl, label: Label) -> str:
    worst = label.worst
    if outliers.epsilon < worst.epsilon or worst.delta > outliers.threshold:
        return outliers.sentence
    return (
        f"As many as you like. A privacy outlier would be a record whose own delta at epsilon "
        f"{epsilon_text(worst.epsilon)} is above {delta_text(outliers.threshold)}, and by the worst case there is none."
    )


def _pictures(synthetic: Labelled, task: Task) -> Section:
    grid = grid_png(synthetic[0], columns=10, labels=synthetic[1])
    shown = Picture(png=grid, alt=f"Ten synthetic records of each class: {', '.join(task.classes)}.")
    return Section("A look", "Ten released records of each class, one class in a row; not picked.", [shown])


def _students(utility: Utility) -> Section:
    rows = [
        ("Trained on the released records", f"{utility.student:.1%}", NOTES["student"]),
        ("Trained on the real records", f"{utility.baseline:.1%}", NOTES["baseline"]),
        *((f"Control: {name}", f"{found:.1%}", "") for name, found in utility.controls.items()),
        ("Always the most frequent class", f"{utility.chance:.1%}", NOTES["chance"]),
        ("Logistic regression, released / real", " / ".join(f"{a:.1%}" for a in utility.logistic), NOTES["logistic"]),
    ]
    best, control = utility.best_control
    text = (
        f"A classifier trained on released records only is right on {utility.student:.1%} of {utility.test_records:,} "
        f"real test records; trained on real records, on {utility.baseline:.1%}. The best control, {best}, reaches "
        f"{control:.1%}."
    )
    if utility.annotated:
        text += " The labels are an annotator's, and the controls show how much of this it teaches by itself."
    return Section("What can be learned from them", text, rows=rows, note=NOTES["controls"])


def _learning(utility: Utility) -> Section:
    curve = utility.learning
    chart = two_lines(
        ("Released records", "Real records"),
        _points(np.log10(curve.sizes), curve.synthetic),
        _points(np.log10(curve.sizes), curve.real),
        heading="Accuracy by number of labelled records",
        description="Accuracy on real test records by how many labelled records a student had.",
        x_title="records, powers of ten",
        y_title="accuracy",
    )
    rows = [
        (f"{size:,} records", f"{a:.1%} released, {'too few' if b is None else f'{b:.1%}'} real", "")
        for size, a, b in zip(curve.sizes, curve.synthetic, curve.real, strict=True)
    ]
    return Section("How many are needed", "Students of ever more records.", [chart], rows, note=NOTES["learning"])


def _points(x: Any, y: Any) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True) if b is not None)


def _validation(utility: Utility) -> Section:
    curves = utility.validation
    shown = max(range(len(curves.learning_rates)), key=lambda i: curves.accuracies[i])
    chart = two_lines(
        ("Released", "Real"),
        _points(curves.steps, curves.synthetic[shown]),
        _points(curves.steps, curves.real[shown]),
        heading=f"Validation loss of the best student, learning rate {curves.learning_rates[shown]:g}",
        description="Loss on real and on released validation records while a student trains.",
        x_title="step",
        y_title="loss",
    )
    pearson = [p for p in curves.pearson if p is not None]
    rows = []
    if pearson:
        rows.append(("Correlation along a training", f"{min(pearson):.2f} to {max(pearson):.2f}", NOTES["validation"]))
    if curves.selection is not None:
        rows.append(
            ("Order of the students (rank correlation)", f"{curves.selection:.2f}", "It rests on few students.")
        )
    if curves.regret is not None:
        rows.append(("Accuracy lost by choosing on released records", f"{curves.regret:.1%}", "The same few students."))
    text = "Would a validation set of released records choose the model that a real one would?"
    return Section("Choosing models with them", text, [chart], rows)


def _distances(utility: Utility) -> Section:
    rows = [
        ("Released from test records", f"{utility.frechet:.4g}", NOTES["frechet"]),
        ("Real training from test records", f"{utility.frechet_real:.4g}", NOTES["frechet_real"]),
    ]
    text = f"Fréchet distance in public features, {utility.frechet_records:,} records each."
    return Section("How far they are from real ones", text, rows=rows)


def _leaks(found: Quality) -> Section:
    rows = [
        (
            "Holdout test",
            found.holdout.sentence,
            "It sees copies and near copies in these features; a leak that moves no point nearer stays unseen.",
        ),
        (
            "Membership attack on the released set",
            found.membership.sentence,
            "One attack by distance. A better one may succeed where this fails.",
        ),
        ("Average-case measure", found.average.sentence, "It does not show whether records were memorised."),
    ]
    leaks = found.holdout.p_value < 0.01 or found.membership.state == "warning"
    text = "Three looks at what the released records give away. None of them proves that nothing leaks."
    return Section("What was found to leak", text, rows=rows, state="warning" if leaks else "")


def _nearest(task: Task, synthetic: Labelled) -> Section:
    """Return released records above the training records nearest to them."""
    made = synthetic[0][:_PAIRS]
    features = measuring_features(task.shape)
    records = feature_vectors("training records", task.train[0], features)
    places = nearest(feature_vectors("released records", made, features, like=records), records, 1)[1][:, 0]
    grid = grid_png(torch.cat([made, task.train[0][torch.from_numpy(places)]]), columns=_PAIRS)
    shown = Picture(png=grid, alt="Above, released records; below, the training record nearest to each.")
    text = "Above, the first released records; below each, the training record nearest to it in public features."
    return Section("The nearest real records", text, [shown], note="This picture shows real records.")
