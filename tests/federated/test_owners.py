"""One owner of a federation's run folder: what is released is never more than what is charged."""

import gc
import shutil

import pytest
import torch
from torch import nn

from tacita import PrivacyError
from tacita.federated import Federation, federation_plan, server
from tacita.federated.storage import label_of_run
from tacita.ledger import Ledger

LOSS = nn.functional.cross_entropy
DATA = [(torch.full((6, 4), float(i)), torch.tensor([0, 1] * 3)) for i in range(4)]
LEVELS = {
    "client": {"noise_multiplier": 2.0},
    "joint": {
        "noise_multiplier": 2.0,
        "record_clip_norm": 1.0,
        "record_rate": 0.2,
        "local_batch": 2,
    },
}


@pytest.fixture
def released(monkeypatch):
    """The private means that really left the server."""
    means, original = [], server.noisy_mean

    def counted(*args, **kwargs):
        means.append(original(*args, **kwargs))
        return means[-1]

    monkeypatch.setattr(server, "noisy_mean", counted)
    return means


def start(where, level="client", rounds=8, **settings):
    plan = federation_plan(level=level, clients=4, client_rate=1.0, rounds=rounds, **LEVELS[level])
    return Federation(nn.Linear(4, 2), LOSS, DATA, plan, run_dir=where, panel=0, record_panel=0, **settings)


def again(where):
    return Federation.resume(where, nn.Linear(4, 2), LOSS, DATA, record_panel=0)


def charged(where):
    with Ledger.open(where) as ledger:
        (run,) = ledger.runs()
        return ledger.charged(run)


@pytest.mark.parametrize("level", list(LEVELS))
def test_l13_a_federation_is_not_resumed_while_it_is_in_use(level, released, tmp_path):
    federation = start(tmp_path / "run", level)
    federation.advance()
    with pytest.raises(PrivacyError, match="in use") as refused:
        again(tmp_path / "run")
    assert "\n" not in str(refused.value)
    federation.pause()
    other = again(tmp_path / "run")
    with pytest.raises(PrivacyError, match="in use"):
        federation.advance()
    for _, _ in zip(range(3), other, strict=False):  # left: that pauses
        pass
    for call in (federation.advance, federation.label, lambda: next(iter(federation))):
        with pytest.raises(PrivacyError, match="resumed elsewhere") as refused:
            call()
        assert "\n" not in str(refused.value)
    other.run()
    assert len(released) == charged(tmp_path / "run" / "ledger.sqlite") == 8
    assert label_of_run(tmp_path / "run") == other.label()


@pytest.mark.parametrize("level", list(LEVELS))
def test_l13_copies_of_a_folder_share_their_ledgers(level, released, tmp_path):
    books = {"ledger": tmp_path / "shared.sqlite"}
    if level == "joint":
        books["record_ledger"] = tmp_path / "records.sqlite"
    one = start(tmp_path / "one", level, **books)
    one.advance()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one.advance()
    two = again(tmp_path / "two")
    assert (two.server.taken, two.server.lost) == (2, 1)
    with pytest.raises(PrivacyError, match="resumed elsewhere"):
        one.advance()
    two.run()
    assert len(released) == charged(tmp_path / "shared.sqlite") == 8


def test_l13_a_federation_that_is_gone_holds_nothing(tmp_path):
    federation = start(tmp_path / "run")
    federation.advance()
    del federation
    gc.collect()
    assert again(tmp_path / "run").server.taken == 1


def test_l14_a_ledger_that_was_removed_stops_the_federation(released, tmp_path):
    federation = start(tmp_path / "run")
    federation.advance()
    (tmp_path / "run" / "ledger.sqlite").unlink()
    for call in (federation.advance, federation.label):
        with pytest.raises(PrivacyError, match="removed or replaced"):
            call()
    assert len(released) == 1
