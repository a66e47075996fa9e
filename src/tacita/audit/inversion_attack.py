"""Model inversion: can a picture of a class be rebuilt from the model, and would it be recognised?

The attack changes a grey picture, step by step, until the model is as sure as it can be that it shows the class. A
recogniser that was trained on other records then judges whether it does.

References:
    Fredrikson, Jha and Ristenpart, Model inversion attacks that exploit confidence information and basic
    countermeasures, CCS 2015 (MI-FACE).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita._numbers import percent_range_text, percent_text
from tacita.audit.attack import Session, SkippedError
from tacita.audit.models import evaluation_mode, minimise, outputs
from tacita.estimators import share_interval
from tacita.label import AttackState, Finding

_CONTRAST = 0.25  # how far pixels may be from grey, as a root mean square: about as in a photo
_MOVE = 0.02  # how far a pixel moves in a step, as a root mean square
_BLUR_EVERY = 5  # steps
_PATIENCE = 20  # steps without a better picture until the attack gives up
_LARGEST_SIDE, _BATCH = 32, 512  # of the images that the recogniser looks at, and how many at once
_LEARNING_RATE = 3e-3  # of the recogniser and of the model without privacy
_PLAIN_STEPS, _PLAIN_BATCH = 400, 128
_WIDTH, _INK = 4.2, "#222222"  # of the picture, in inches
_RECORDS_PER_CLASS = 5  # held out, to train the recogniser on


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
                ("guessing", percent_text(1 / len(self.class_names)), "", "", ""),
            ),
            picture="data:image/png;base64," + base64.b64encode(self.png()).decode(),
            picture_text=(
                "Three rows of images, one column a class. Top: a typical training image. Middle: rebuilt from a model "
                f"trained without privacy, where {self.plain.recognised} of {self.plain.classes} classes are "
                f"recognised. Bottom: rebuilt from the private model, where it is {self.private.recognised}."
            ),
            notes=_notes(self),
            tests_claim=False,
        )


def invert(
    model: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    classes: int,
    *,
    steps: int = 100,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Rebuild a picture of every class, all at once.

    Each step lowers the cost of a picture, the class's log-odds with a minus sign; that is least where 1 minus the
    class's confidence is, and its gradient does not vanish when the model is sure. Pixels stay in [0, 1]; every fifth
    step the picture is blurred a little. The best picture is kept, and 20 steps without a better one end it.

    Args:
        model: Returns one logit for each class; a module is run in evaluation mode.
        shape: Channels, height and width of its inputs.
        classes: How many classes it has.
        steps: The largest number of steps.
        rng: Draws the faint pattern on the grey start; None is seeded by the operating system.

    Returns:
        Pictures of shape (classes, channels, height, width), in [0, 1].
    """
    if len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), got {tuple(shape)}; inversion is for images.")
    count = _check.count("classes", classes, low=2)
    pattern = (rng or np.random.default_rng()).random((count, *shape), dtype=np.float32)
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    device = next((p.device for p in parameters), torch.device("cpu"))
    start = 0.5 + 0.1 * (_blurred(torch.from_numpy(pattern)) - 0.5)
    with evaluation_mode(model):
        return _descend(model, start.to(device), _check.count("steps", steps)).cpu()


def inversion(
    private_model: Callable[[Tensor], Tensor],
    plain_model: Callable[[Tensor], Tensor],
    targets: Tensor,
    recogniser: Callable[[Tensor], Tensor],
    class_names: Sequence[str],
    *,
    starts: int = 5,
    steps: int = 100,
    private_accuracy: float | None = None,
    plain_accuracy: float | None = None,
    rng: np.random.Generator | None = None,
) -> Inversion:
    """Rebuild every class's picture from a private and from a plain model, and see whether they are recognised.

    Args:
        private_model: The model under attack.
        plain_model: The same kind of model, trained on the same records without privacy.
        targets: One typical image a class, such as the average of its training images; to look at, not to judge by.
        recogniser: Judges the pictures. Trained on other records than the models: see `recogniser`.
        class_names: As many as there are targets.
        starts: Pictures rebuilt for each class.
        steps: As in `invert`.
        private_accuracy: The private model's accuracy on other records, to be shown beside its rate.
        plain_accuracy: The plain model's.
        rng: Draws the starts; None is seeded by the operating system.

    Returns:
        How many classes are recognised in pictures from either model, and the pictures.
    """
    if targets.dim() != 4 or len(targets) != len(class_names):
        raise ValueError(
            f"targets must be one image for each of {len(class_names)} classes, (classes, channels, height, width), "
            f"got shape {tuple(targets.shape)}."
        )
    rng = rng or np.random.default_rng()
    count = _check.count("starts", starts)
    plain, private = (
        torch.stack([invert(model, targets.shape[1:], len(targets), steps=steps, rng=rng) for _ in range(count)])
        for model in (plain_model, private_model)
    )
    return Inversion(
        class_names=tuple(str(name) for name in class_names),
        plain=_rate(plain, recogniser, plain_accuracy),
        private=_rate(private, recogniser, private_accuracy),
        starts=count,
        images=(targets.detach().cpu().float(), plain[0], private[0]),
    )


def recogniser(
    inputs: Tensor, labels: Tensor, *, steps: int = 200, rng: np.random.Generator | None = None
) -> nn.Module:
    """Train a small network to recognise classes, whatever the brightness and contrast, and through noise.

    Args:
        inputs: Images, (records, channels, height, width); none that the attacked models were trained on.
        labels: Their classes.
        steps: How long to train.
        rng: Draws the initial weights and the noise; None is seeded by the operating system.

    Returns:
        A network that gives one logit for each class, in evaluation mode.
    """
    seen = _Seen()
    images, labels = seen(inputs.detach().cpu()), labels.cpu()

    def loss() -> Tensor:
        rows = torch.randperm(len(images))[:_BATCH]
        noisy = images[rows] + 0.5 * torch.randn(len(rows), images.shape[1])
        return functional.cross_entropy(head(noisy), labels[rows])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int((rng or np.random.default_rng()).integers(2**62)))
        head = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, int(labels.max()) + 1))
        optimizer = torch.optim.Adam(head.parameters(), lr=_LEARNING_RATE)
        for _ in minimise(optimizer, loss, _check.count("steps", steps)):
            pass
    return nn.Sequential(seen, head).eval()


def attack_by_inversion(session: Session) -> tuple[dict[str, Any], Finding]:
    """Train a model without privacy and a recogniser: are pictures rebuilt from the private model recognised?"""
    target = session.target
    (inputs, targets), (held, answers) = target.classified()
    if inputs.dim() != 4:
        raise SkippedError("inversion needs image records")
    if len(answers) < _RECORDS_PER_CLASS * (int(targets.max()) + 1):
        raise SkippedError("it needs five held-out records a class, to train a judge on")
    names = target.classes or tuple(str(i) for i in range(int(targets.max()) + 1))
    models = target.trained()[0], _without_privacy(session)
    private, plain = (float((outputs(model, held).argmax(1) == answers).float().mean()) for model in models)
    found = inversion(
        *models,
        torch.stack([inputs[targets == c].mean(0) for c in range(len(names))]),
        recogniser(held, answers, rng=session.rng(8)),
        names,
        private_accuracy=private,
        plain_accuracy=plain,
        rng=session.rng(9),
    )
    return found.to_dict(), found.finding()


def _without_privacy(session: Session) -> nn.Module:
    (inputs, targets), _ = session.target.classified()
    (model, _, _), (_, loss_fn) = session.target.fresh(), session.target.trained()
    rng, size = session.rng(7), min(_PLAIN_BATCH, len(targets))

    def loss() -> Tensor:
        rows = torch.from_numpy(rng.integers(len(targets), size=size))
        return loss_fn(model(inputs[rows]), targets[rows])

    for step in minimise(torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE), loss, _PLAIN_STEPS):
        session.progress(step, _PLAIN_STEPS, "step")
    return model


class _Seen(nn.Module):
    """Images as the recogniser sees them: not too large, with average 0 and standard deviation 1 each."""

    def forward(self, images: Tensor) -> Tensor:
        size = min(images.shape[2], _LARGEST_SIDE), min(images.shape[3], _LARGEST_SIDE)
        flat = functional.adaptive_avg_pool2d(images, size).flatten(1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        return flat / flat.std(dim=1, keepdim=True).clamp_min(1e-3)


def _descend(model: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    here, best = start, start
    lowest = torch.full((len(start),), math.inf, device=start.device)
    since = 0
    for step in range(1, steps + 1):
        costs, gradient = _costs(model, here)
        better = costs < lowest
        lowest = torch.where(better, costs, lowest)
        best = torch.where(better[:, None, None, None], here, best)
        since = 0 if bool(better.any()) else since + 1
        if since >= _PATIENCE:
            break
        here = here - _MOVE * gradient / _size(gradient).clamp_min(1e-30)
        if step % _BLUR_EVERY == 0:
            here = _blurred(here)
        here = (0.5 + (here - 0.5) * (_CONTRAST / _size(here - 0.5)).clamp_max(1.0)).clamp(0.0, 1.0)
    return best


def _size(images: Tensor) -> Tensor:
    return images.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()


def _costs(model: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return minus the log-odds of each image's class, the first for the first and so on, and the gradients."""
    images = images.detach().requires_grad_(True)
    logits = model(images)
    if logits.shape != (len(images), len(images)):
        raise ValueError(
            f"The model must return a logit for each of {len(images)} classes, got shape {tuple(logits.shape[1:])}."
        )
    own = torch.eye(len(images), dtype=torch.bool, device=logits.device)
    costs = logits.masked_fill(own, -math.inf).logsumexp(dim=1) - logits.diagonal()
    (gradient,) = torch.autograd.grad(costs.sum(), images)
    return costs.detach(), gradient.nan_to_num(0.0, 0.0, 0.0)


def _blurred(images: Tensor) -> Tensor:
    """Blur with a Gaussian that is wider for larger images: a third of a pixel for 8x8, a pixel for 64x64."""
    width = math.sqrt(min(images.shape[2:])) / 8.0
    reach = max(1, math.ceil(2.0 * width))
    blurred = gaussian_filter(images.cpu().numpy(), width, radius=reach, axes=(2, 3), mode="nearest")
    return torch.from_numpy(blurred).to(images.device)


def _rate(pictures: Tensor, judge: Callable[[Tensor], Tensor], accuracy: float | None) -> Rate:
    """Count the classes that are recognised in (starts, classes, channels, height, width) pictures."""
    starts, classes = pictures.shape[:2]
    with torch.no_grad():
        answers = judge(pictures.flatten(0, 1)).argmax(dim=1).view(starts, classes)
    right = (answers == torch.arange(classes)).double().mean(dim=0)
    recognised = int((right > 0.5).sum())
    low, high = share_interval(recognised, classes)
    return Rate(
        recognised=recognised,
        classes=classes,
        low=low,
        high=high,
        pictures=float(right.mean()),
        accuracy=None if accuracy is None else _check.in_range("accuracy", accuracy, 0.0, 1.0),
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
    interval = percent_range_text(rate.low, rate.high, places=0)
    return name, f"{rate.recognised} of {rate.classes}", interval, f"{rate.pictures:.0%}", accuracy


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
    captions = ("What the class looks like", "Rebuilt, trained without privacy", "Rebuilt, trained privately")
    smooth = "bicubic" if min(rows[0].shape[2:]) < 32 else "nearest"
    figure = figure_module.Figure(figsize=(_WIDTH, 3.0 * (_WIDTH / columns + 0.34)), facecolor="white")
    for part, images, caption in zip(figure.subfigures(3, 1), rows, captions, strict=True):
        part.suptitle(caption, x=0.012, y=0.97, ha="left", fontsize=10, color=_INK, weight="bold")
        part.subplots_adjust(0.005, 0.0, 0.995, _WIDTH / (_WIDTH + 0.34 * columns), wspace=0.06)
        for axes, image, name in zip(part.subplots(1, columns), images, names, strict=False):
            axes.imshow(_pixels(image, stretch=images is not rows[0]), "gray", vmin=0.0, vmax=1.0, interpolation=smooth)
            axes.axis("off")
            if images is rows[0]:
                axes.set_title(name, fontsize=9, color=_INK, pad=2)
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
