"""An active attack on a federation (Hitaj, Ateniese & Pérez-Cruz 2017): a client that lies learns what others hold.

Clients train one classifier of digits. One of them holds no picture of the digit it wants to see. It trains a generator
of pictures that the common model takes for that digit, and hands in what it made as records of an eleventh class: the
others then teach the model to tell theirs from these, and the model teaches the generator.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.inversion.releases import weights_from
from experiments.inversion.subjects import Labelled, Subject, accuracy, mnist, packed, recognised
from experiments.rows import Jobs, Row
from tacita.federated import Federation, FederationPlan
from tacita.federated.client import Memory, Part
from tacita.federated.local import holdings
from tacita.federated.recipes import deal
from tacita.synthesis.networks import Generator, make_generator
from tacita.training.gradients import Parameters
from tacita.training.recipes import default_model
from tacita.training.records import Records

WANTED, MADE = 3, 10  # the digit, and the class of what the attacker makes
SHOWN = 500  # pictures that are judged
CHOSEN = "fixed beforehand; steps of the generator and learning rates by looking at its loss alone"
subject = cache(partial(mnist, 20_000))


@dataclass(frozen=True)
class Setting:
    """One federation.

    Attributes:
        clients: How many, the attacker among them.
        size: Records of each.
        client_rate: The chance with which each takes part in a round.
        batch: Records in a step of a client.
        epsilon: Worst case of a client; None without a guarantee.
        holders: How many clients hold pictures of the digit; None is all but the attacker.
        active: Whether the attacker lies; else it trains its generator and sends an honest update.
        rounds: How many.
        turns: Steps of the generator in a round.
    """

    clients: int = 10
    size: int = 600
    client_rate: float = 1.0
    batch: int = 20
    epsilon: float | None = None
    holders: int | None = None
    active: bool = True
    rounds: int = 60
    turns: int = 50


LARGE = Setting(clients=1000, size=20, client_rate=0.3, batch=5, turns=150)
SETTINGS = {
    "10 clients": Setting(),
    "10 clients, honest updates": Setting(active=False),
    "10 clients, one holds the digit": Setting(holders=1),
    "10 clients, nobody holds the digit": Setting(holders=0),
    "1,000 clients": LARGE,
    "1,000 clients, nobody holds the digit": replace(LARGE, holders=0),
    "1,000 clients, epsilon 8": replace(LARGE, epsilon=8.0),
}


@dataclass(frozen=True)
class Clients:
    """What clients do in a round; the one that holds a record of the eleventh class attacks."""

    setting: Setting
    seed: int
    rate: float = 0.1

    def __call__(
        self, parameters: Parameters, records: Records | Part, memory: Memory, random: np.random.Generator
    ) -> tuple[Parameters, Memory]:
        """Return by how much the model moves, and the attacker's generator."""
        inputs, labels = records.take(np.arange(len(records)))
        model = _scratch()
        model.load_state_dict(parameters)
        if MADE in labels:
            generator = new_generator(self.seed)
            optimizer = restored(generator, memory)
            learn(generator, optimizer, model, self.setting.turns, random)
            memory = remembered(generator, optimizer)
            own = labels != MADE
            inputs, labels = inputs[own], labels[own]
            if self.setting.active:
                lies = drawn(generator, len(labels), random)
                inputs, labels = torch.cat([inputs, lies]), torch.cat([labels, torch.full((len(lies),), MADE)])
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate)
        for rows in torch.from_numpy(random.permutation(len(labels))).split(self.setting.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        return {name: value.detach() - parameters[name] for name, value in model.named_parameters()}, memory


def classifier(seed: int) -> nn.Module:
    """Return an untrained classifier of ten digits and an eleventh class."""
    with weights_from(seed):
        return default_model((1, 28, 28), MADE + 1)


@cache
def _scratch() -> nn.Module:
    """Return the model that clients train in turns: making one takes longer than training it on 20 records."""
    return classifier(0)


def new_generator(seed: int) -> Generator:
    """Return the attacker's untrained generator."""
    with weights_from(seed):
        return make_generator((1, 28, 28), 0, width=32)


def drawn(generator: Generator, count: int, random: np.random.Generator) -> Tensor:
    """Return generated pictures."""
    with torch.no_grad():
        return generator(*noise(generator, count, random))


def noise(generator: Generator, count: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return what a generator makes pictures of."""
    z = torch.from_numpy(random.standard_normal((count, generator.latent), dtype=np.float32))
    return z, torch.zeros(count, dtype=torch.long)


def learn(
    generator: Generator, optimizer: torch.optim.Optimizer, model: nn.Module, turns: int, random: np.random.Generator
) -> None:
    """Train the generator to make what the model takes for the digit."""
    wanted = torch.full((64,), WANTED)
    for _ in range(turns):
        optimizer.zero_grad()
        functional.cross_entropy(model(generator(*noise(generator, 64, random))), wanted).backward()
        optimizer.step()


def remembered(generator: Generator, optimizer: torch.optim.Optimizer) -> Memory:
    """Return a generator and its optimiser as tensors by name."""
    kept = {f"generator.{name}": value.clone() for name, value in generator.state_dict().items()}
    for name, parameter in generator.named_parameters():
        kept |= {f"{key}.{name}": value.clone() for key, value in optimizer.state[parameter].items()}
    return kept


def restored(generator: Generator, memory: Memory) -> torch.optim.Optimizer:
    """Return the optimiser of a generator, and let both go on from what was remembered."""
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    if memory:
        generator.load_state_dict({name: memory[f"generator.{name}"] for name in generator.state_dict()})
        for name, parameter in generator.named_parameters():
            optimizer.state[parameter] = {k: memory[f"{k}.{name}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}
    return optimizer


def dealt(data: Subject, setting: Setting, seed: int) -> tuple[Labelled, list[np.ndarray]]:
    """Return the records, and which of them each client holds; the first client is the attacker."""
    inputs, labels = data.attacked
    dealt_out = deal(labels.numpy(), "even", setting.clients, setting.size, seed=seed)
    parts = [np.asarray(part) for part in dealt_out]
    holders = setting.clients - 1 if setting.holders is None else setting.holders
    without = [part if 1 <= i <= holders else part[labels.numpy()[part] != WANTED] for i, part in enumerate(parts)]
    mark = torch.zeros(1, *inputs.shape[1:]), torch.tensor([MADE])
    without[0] = np.append(without[0], len(labels))  # what tells the attacker from the others
    return (torch.cat([inputs, mark[0]]), torch.cat([labels, mark[1]])), without


def attack_row(setting: Setting, seed: int) -> Row:
    """Run one federation with an attacker in it, and judge what the attacker ends up with."""
    torch.set_num_threads(1)
    data = subject()
    records, parts = dealt(data, setting, seed)
    shape: dict[str, Any] = {"clients": setting.clients, "client_rate": setting.client_rate, "rounds": setting.rounds}
    if setting.epsilon is None:
        plan = FederationPlan.without_guarantee(**shape)
    else:
        target = (setting.epsilon, 0.1 / setting.clients)
        plan = FederationPlan.declare(level="client", target=target, clip_norm=0.3, **shape)
    training, model = Clients(setting, seed), classifier(seed)
    federation = Federation(model, None, holdings(records, parts), plan, local=training, panel=0, seed=seed)
    federation.run()
    generator = new_generator(seed)
    random = np.random.default_rng([seed, 7])
    restored(generator, next(client.memory for client in federation.clients.values() if client.memory))
    pictures = drawn(generator, SHOWN, random)
    wanted = torch.full((SHOWN,), WANTED)
    inputs, labels = data.other
    others = inputs[labels == WANTED]
    with torch.no_grad():
        taken = float((model(pictures).argmax(1) == WANTED).double().mean())
    return {
        "seeds": [seed],
        "settings": CHOSEN,
        "setting": asdict(setting),
        "accuracy": accuracy(model, data.other),
        "knows": accuracy(model, (others, torch.full((len(others),), WANTED))),
        "taken": taken,
        "recognised": float(recognised(data, pictures, wanted, seed).double().mean()),
        "likeness": float(closeness(pictures, others)),
        "a real one's": float(closeness(others[:SHOWN], others[SHOWN:])),
        "pictures": packed(pictures[:8]),
    }


def closeness(pictures: Tensor, others: Tensor) -> Tensor:
    """Return the mean correlation of pictures with the most similar of others, pixel by pixel."""
    one, other = (functional.normalize(x.flatten(1) - x.flatten(1).mean(1, keepdim=True)) for x in (pictures, others))
    return (one @ other.T).amax(1).mean()


def rows(seed: int, *, quick: bool) -> Jobs:
    """Return what measures each setting."""
    if quick:
        return {f"active 10 clients seed {seed}": partial(attack_row, Setting(rounds=2, turns=2), seed)}
    return {f"active {name} seed {seed}": partial(attack_row, setting, seed) for name, setting in SETTINGS.items()}
