"""Model inversion: can a picture of a class be rebuilt from the model, and would it be recognised?

The attack changes a grey picture, step by step, until the model is as sure as it can be that it shows the class. A
recogniser that was trained on other records then judges whether it does.

References:
    Fredrikson, Jha and Ristenpart, Model inversion attacks that exploit confidence information and basic
    countermeasures, CCS 2015 (MI-FACE).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita import _check
from tacita.audit.attack import Session
from tacita.audit.inversion_result import Inversion, Rate
from tacita.audit.models import evaluation_mode, minimise, outputs
from tacita.audit.target import SkippedError, Target
from tacita.estimators import share_interval
from tacita.label import Finding

_CONTRAST = 0.25  # how far pixels may be from grey, as a root mean square: about as in a photo
_MOVE = 0.02  # how far a pixel moves in a step, as a root mean square
_BLUR_EVERY = 5  # steps
_PATIENCE = 20  # steps without a better picture until the attack gives up
_LARGEST_SIDE, _BATCH = 32, 512  # of the images that the recogniser looks at, and how many at once
_LEARNING_RATE = 3e-3  # of the recogniser and of the model without privacy
_PLAIN_STEPS, _PLAIN_BATCH = 400, 128
_RECORDS_PER_CLASS = 5  # held out, to train the recogniser on


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


class InversionAttack:
    """Model inversion: can a class's picture be rebuilt from the model?"""

    activity = "a model without privacy, to compare with"

    def check(self, target: Target) -> None:
        """Require a classifier of images, with enough held-out records to train a recogniser."""
        (inputs, targets), (_, classes) = target.classified()
        if inputs.dim() != 4:
            raise SkippedError("inversion needs image records")
        if len(classes) < _RECORDS_PER_CLASS * (int(targets.max()) + 1):
            raise SkippedError("it needs five held-out records a class, to train a judge on")

    def run(self, session: Session) -> Inversion:
        """Train a model without privacy and a recogniser, and rebuild pictures from both models."""
        target = session.target
        (inputs, targets), (held, answers) = target.classified()
        names = target.classes or tuple(str(i) for i in range(int(targets.max()) + 1))
        model, plain = target.trained()[0], _without_privacy(session)
        return inversion(
            model,
            plain,
            torch.stack([inputs[targets == c].mean(0) for c in range(len(names))]),
            recogniser(held, answers, rng=session.rng(8)),
            names,
            private_accuracy=_accuracy(model, held, answers),
            plain_accuracy=_accuracy(plain, held, answers),
            rng=session.rng(9),
        )

    def finding(self, result: Inversion, session: Session) -> Finding:
        """Return the result for the owner's label."""
        return result.finding()


def _without_privacy(session: Session) -> nn.Module:
    (inputs, targets), _ = session.target.classified()
    (model, _, _), (_, loss_fn) = session.target.fresh(), session.target.trained()
    rng, size = session.rng(7), min(_PLAIN_BATCH, len(targets))

    def loss() -> Tensor:
        rows = torch.from_numpy(rng.integers(len(targets), size=size))
        return loss_fn(model(inputs[rows]), targets[rows])

    for step in minimise(torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE), loss, _PLAIN_STEPS):
        session.progress(step, _PLAIN_STEPS)
    return model


def _accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    return float((outputs(model, inputs).argmax(1) == targets).float().mean())


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
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=images.device) / width) ** 2)
    line = (line / line.sum()).to(images.dtype)
    channels = images.shape[1]
    padded = functional.pad(images, (reach,) * 4, mode="replicate")
    down = functional.conv2d(padded, line.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return functional.conv2d(down, line.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


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
