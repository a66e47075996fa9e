"""Model inversion: tables 3.3 and 4.3, figures 3.4 and 3.5 of the thesis, and the figures of docs/explanation/audit.md.

    python -m experiments.inversion.run [--quick] [--list] [PATTERN ...]

Students are trained on real pictures, on real pictures with DP-SGD, or on what a generator releases in their place; the
attack of Fredrikson et al. rebuilds a picture of each class from the student. Half of the digits are for generators and
students, half for the judges; of the Olivetti faces (40 people) seven photos of each person, and the other three. A
student's accuracy is measured on the judges' part, the judge's on the students'.

Rows `active` are federations with an attacker among the clients. Rows `audit` are those of the audit's page: softmax
regressions by plain gradient descent, clipped and noised or not. The faces are of people who took part in a study:
pictures of them are neither kept nor drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.inversion import active, mu
from experiments.inversion.releases import drawn, embedding, fedgp, wgan
from experiments.inversion.subjects import (
    Labelled,
    Subject,
    accuracy,
    attack,
    digits,
    faces,
    mnist,
    packed,
    recognised,
    train,
    train_privately,
)
from experiments.rows import Jobs, Row, main
from tacita.audit import inversion, recogniser
from tacita.synthesis.networks import Generator

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "inversion-digits.png"
SEEDS = (1, 2, 3)
RELEASED = {"digits": 10_000, "mnist": 20_000, "faces": 10_000}
DP_STEPS, DP_RATES = {"softmax": 100, "mlp": 40}, {"softmax": 1.0, "mlp": 0.6}
SUBJECTS: dict[str, Callable[[], Subject]] = {"digits": cache(digits), "faces": cache(faces), "mnist": cache(mnist)}
CHOSEN = (
    "students, and generators of digits, by the library's defaults or fixed beforehand; the GAN's steps for faces and "
    "DP-SGD's learning rates by students' accuracy on a part of the attacked pictures, which is not paid for"
)
GENERATORS: dict[str, Callable[..., Generator]] = {
    "wgan-gp": wgan,
    "dp-critic": partial(wgan, layer_noise=1.5),
    "mean-embedding 1": partial(embedding, epsilon=1.0),
    "mean-embedding 10": partial(embedding, epsilon=10.0),
    "fedgp": fedgp,
}
MODELS = ("real", "dp 0.9", "dp 8", "untrained")


def student_row(data: str, source: str, seed: int, *, quick: bool = False) -> Row:
    """Attack students of one source of pictures: the thesis's network, and a softmax regression."""
    torch.set_num_threads(1)
    subject = SUBJECTS[data]()
    row: Row = {"seeds": [seed], "settings": CHOSEN, "recogniser": accuracy(subject.judge(seed), subject.attacked)}
    records = subject.attacked
    if source in GENERATORS:
        short = {"rounds": 1} if source == "fedgp" else {"steps": 2}
        generator = GENERATORS[source](subject, seed, **(short if quick else {}))
        records = drawn(generator, 200 if quick else RELEASED[data], seed)
        row |= in_the_release(subject, records, seed)
    for kind in ("mlp", "softmax"):
        found, pictures = attack(subject, trained(subject, kind, source, records, seed, quick=quick), seed)
        row[kind] = found
        if subject.shown:
            row[f"{kind} pictures"] = packed(pictures)
    return row


def trained(subject: Subject, kind: str, source: str, records: Labelled, seed: int, *, quick: bool) -> nn.Module:
    """Return a student."""
    model = subject.model(kind, seed)
    if source == "untrained":
        return model
    if source.startswith("dp "):
        steps, rate = 3 if quick else DP_STEPS[kind], DP_RATES[kind]
        epsilon = float(source.removeprefix("dp "))
        return train_privately(model, records, epsilon=epsilon, delta=subject.delta, rate=rate, steps=steps, seed=seed)
    return train(model, records, seed=seed, steps=5 if quick else 600)


def in_the_release(subject: Subject, records: Labelled, seed: int) -> Row:
    """Return what is recognised without any attack, in the released pictures and in each class's average."""
    inputs, labels = records
    count = len(subject.classes)
    right = recognised(subject, inputs, labels, seed).double()
    averages = torch.stack([inputs[labels == c].mean(0) if (labels == c).any() else inputs[0] for c in range(count)])
    found = {
        "pictures": float(right.mean()),
        "averages": int(recognised(subject, averages, torch.arange(count), seed).sum()),
    }
    if subject.name == "faces":
        found["detected"] = float(subject.detector(inputs[:1000]).double().mean())
    return {"released": found}


def audit_row(data: str, epsilon: float, *, quick: bool = False) -> Row:
    """Attack a plain and a private softmax regression that take the same steps."""
    torch.set_num_threads(1)
    subject = faces(64) if data == "faces" else digits()
    plain, private = (subject.model("softmax", 0) for _ in range(2))
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    steps = 5 if quick else 100
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(plain(subject.attacked[0]), subject.attacked[1]).backward()
        optimizer.step()
    train_privately(private, subject.attacked, epsilon=epsilon, delta=subject.delta, rate=1.0, steps=steps, seed=0)
    found = inversion(
        private,
        plain,
        subject.averages,
        recogniser(*subject.other, rng=np.random.default_rng(1)),
        subject.classes,
        private_accuracy=accuracy(private, subject.other),
        plain_accuracy=accuracy(plain, subject.other),
        rng=np.random.default_rng(2),
    )
    if subject.shown and not quick:
        PICTURE.write_bytes(found.png())
    settings = "chosen by looking at the accuracy on the judge's part, which is not accounted for"
    return {"seeds": [0], "settings": settings, "epsilon": epsilon, "delta": subject.delta, **found.to_dict()}


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    jobs: dict[str, Any] = {}
    for seed in SEEDS[:1] if quick else SEEDS:
        for data, table in (("faces", "table 3.3"), ("digits", "figure 3.4"), ("mnist", "figure 3.4")):
            for source in (*MODELS, *GENERATORS):
                number = "table 4.3" if source == "fedgp" else table
                if data == "mnist" and (source == "fedgp" or quick):
                    continue
                if data == "faces" and source.startswith("mean"):  # seven photos of a person: nothing but noise
                    continue
                jobs[f"{number} {data} {source} seed {seed}"] = partial(student_row, data, source, seed, quick=quick)
        jobs |= mu.rows(seed, quick=quick) | active.rows(seed, quick=quick)
    for data, epsilon in (("digits", 1.0), ("faces", 8.0), ("faces", 1.0)):
        jobs[f"audit {data} {epsilon:g}"] = partial(audit_row, data, epsilon, quick=quick)
    return jobs


if __name__ == "__main__":
    main("inversion", rows)
