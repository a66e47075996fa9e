"""What inversion rebuilt, whether it was recognised, and the words and the picture for the owner's label."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from io import BytesIO
from typing import Any

from torch import Tensor

from tacita import _check
from tacita.label import AttackState, Finding

_WIDTH, _INK = 4.2, "#222222"  # of the picture, in inches


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How many classes are recognised in pictures rebuilt from one model.

    Attributes:
        recognised: Classes of which more than half of the pictures are recognised.
        classes: How many classes there are.
        low: Lower end of the 95% interval of the share of classes (Clopper-Pearson, classes as trials).
        high: Its upper end.
        pictures: Share of all pictures that are recognised.
        accuracy: The model's own accuracy on records it was not trained on, if known.
    """

    recognised: int
    classes: int
    low: float
    high: float
    pictures: float
    accuracy: float | None = None

    @property
    def above_chance(self) -> bool:
        """Whether the whole interval lies above guessing."""
        return self.low > 1.0 / self.classes


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """What was rebuilt, and whether it was recognised. For the data's owner.

    Attributes:
        class_names: The classes.
        plain: Pictures rebuilt from a model trained without privacy.
        private: Pictures rebuilt from the private model.
        starts: Pictures rebuilt for each class.
        images: Targets, and one picture a class from the plain and the private model.
    """

    class_names: tuple[str, ...]
    plain: Rate
    private: Rate
    starts: int
    images: tuple[Tensor, Tensor, Tensor] = field(repr=False, compare=False)

    @property
    def state(self) -> AttackState:
        """`warning` if more than chance is recognised, `open` if the attack fails without privacy too."""
        if self.private.above_chance:
            return "warning"
        return "not-refuted" if self.plain.above_chance else "open"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the pictures."""
        return {
            "state": self.state,
            "chance": 1.0 / len(self.class_names),
            "starts": self.starts,
            "plain": asdict(self.plain),
            "private": asdict(self.private),
        }

    def png(self) -> bytes:
        """Return the pictures side by side: targets, without privacy, with privacy."""
        return _drawn(self.images, self.class_names)

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        return Finding(
            key="inversion",
            heading="Can a class's picture be rebuilt from the model?",
            state=self.state,
            sentence=_sentence(self),
            columns=("Rebuilt from", "Classes recognised", "95% interval", "Of all pictures", "Model's accuracy"),
            rows=(
                _row("a model without privacy", self.plain),
                _row("the private model", self.private),
                ("guessing", f"{1 / len(self.class_names):.1%}", "", "", ""),
            ),
            picture="data:image/png;base64," + base64.b64encode(self.png()).decode(),
            picture_text=_picture_text(self),
            notes=_notes(self),
            tests_claim=False,
        )


def _sentence(found: Inversion) -> str:
    plain, private = found.plain, found.private
    of = f"{private.recognised} of {private.classes} classes"
    without = f"From a model trained without privacy it is {plain.recognised} of {plain.classes}."
    if found.state == "warning":
        return (
            f"Yes: pictures rebuilt from the private model are recognised for {of}, more than by guessing. {without} "
            "This is what a class has in common, not one record, but where a class is one person it is that person."
        )
    if found.state == "not-refuted":
        return (
            f"Not by this attack: pictures rebuilt from the private model are recognised for {of}, which cannot be "
            f"told from guessing. {without}"
        )
    return (
        f"This cannot be judged: pictures rebuilt from the private model are recognised for {of}, but even from a "
        f"model trained without privacy it is no more than guessing gives ({plain.recognised} of {plain.classes})."
    )


def _row(name: str, rate: Rate) -> tuple[str, ...]:
    accuracy = "" if rate.accuracy is None else f"{rate.accuracy:.0%}"
    interval = f"{math.floor(100 * rate.low + 1e-9)}% to {math.ceil(100 * rate.high - 1e-9)}%"
    return name, f"{rate.recognised} of {rate.classes}", interval, f"{rate.pictures:.0%}", accuracy


def _picture_text(found: Inversion) -> str:
    return (
        "Three rows of images, one column a class. Top: a typical training image. Middle: rebuilt from a model trained "
        f"without privacy, where {found.plain.recognised} of {found.plain.classes} classes are recognised. Bottom: "
        f"rebuilt from the private model, where it is {found.private.recognised}."
    )


def _notes(found: Inversion) -> tuple[str, ...]:
    notes = [
        "For the owner only: the picture shows what the training records look like; with faces, a person.",
        "Privacy of one record does not promise that a class's typical picture stays hidden: it limits what one record "
        "adds. Where a class is one person with several records, they count together: k records cost about k times the "
        "epsilon of one, and a larger delta.",
        f"The attack starts {found.starts} times from grey with a faint pattern and changes the picture until the "
        "model is as sure as it can be (Fredrikson, Jha and Ristenpart, 2015). Other attacks may see more.",
        "A picture is recognised if a network trained on other records gives it the right class; a class, if more than "
        "half of its pictures are. What looks like noise to people can still be recognised by a machine.",
        "The 95% interval (Clopper-Pearson) treats classes as independent trials. Pictures of one class are not "
        "independent, so they do not narrow it.",
        "Rebuilt pictures are drawn with their contrast stretched; images under 32 pixels are smoothed for the eye.",
    ]
    plain, private = found.plain.accuracy, found.private.accuracy
    if plain is not None and private is not None and private < 0.5 * plain:
        notes.append(
            f"The private model is right for {private:.0%} of other records, the plain one for {plain:.0%}: a part of "
            "the protection is that it has learned little."
        )
    return tuple(notes)


def _drawn(rows: Sequence[Tensor], names: Sequence[str]) -> bytes:
    """Draw three rows of at most ten images, each row under its caption, so that a phone shows them readably."""
    try:
        figure_module, image_module = import_module("matplotlib.figure"), import_module("PIL.Image")
    except ImportError:
        raise _check.missing("Pictures need matplotlib", "report") from None
    columns = min(len(names), 10 if max(map(len, names)) <= 3 else 5)
    side = _WIDTH / columns
    captions = ("What the class looks like", "Rebuilt, trained without privacy", "Rebuilt, trained privately")
    heights = [side + extra for extra in (0.42, 0.3, 0.3)]  # room for a caption, and once for the names
    height = sum(heights)
    figure = figure_module.Figure(figsize=(_WIDTH, height), facecolor="white")
    smooth = "bicubic" if min(rows[0].shape[2:]) < 32 else "nearest"
    for row, (images, caption) in enumerate(zip(rows, captions, strict=True)):
        bottom = height - sum(heights[: row + 1])
        top = (bottom + heights[row] - 0.08) / height
        figure.text(0.012, top, caption, fontsize=10, color=_INK, va="top", weight="bold")
        for column in range(columns):
            place = (column + 0.03) / columns, (bottom + 0.03 * side) / height, 0.94 / columns, 0.94 * side / height
            axes = figure.add_axes(place)
            pixels = _pixels(images[column], stretch=row > 0)
            axes.imshow(pixels, cmap="gray", vmin=0.0, vmax=1.0, interpolation=smooth)
            axes.axis("off")
            if row == 0:
                axes.set_title(names[column], fontsize=9, color=_INK, pad=2)
    raw, small = BytesIO(), BytesIO()
    figure.savefig(raw, format="png", dpi=150)
    with image_module.open(raw) as drawn:
        drawn.convert("RGB" if rows[0].shape[1] == 3 else "L").save(small, format="PNG", optimize=True)
    return small.getvalue()


def _pixels(image: Tensor, *, stretch: bool) -> Any:
    if stretch:
        image = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-6)
    channels_last = image.permute(1, 2, 0).clamp(0.0, 1.0).numpy()
    return channels_last if len(image) == 3 else channels_last.mean(axis=2)
