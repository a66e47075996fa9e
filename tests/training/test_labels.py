"""What a training says on its label, and what does not depend on the data."""

import shutil

import pytest
import torch
from scipy.stats import binom
from torch import nn

from tacita._check import PrivacyError
from tacita.accounting import token_budget, token_profile
from tacita.training.labels import standing_of_run
from tests.training.trainings import THOROUGH, again, start, train


def test_f3_steps_files_and_lines_do_not_depend_on_the_data(blobs, tmp_path):
    x, y = blobs
    shapes = set()
    for i in range(50 if THOROUGH else 3):
        data = (x, y) if i == 0 else (torch.cat([x[:i], x[i + 1 :]]), torch.cat([y[:i], y[i + 1 :]]))
        if i % 3 == 2:
            data[0][0] = float("nan")
        where = tmp_path / str(i)
        torch.manual_seed(0)
        private = train(data, run_dir=where, name="same", seed=i, batch_size=30, individual_every=3, steps=12)
        private.run().label()
        lines = len((where / "metrics.jsonl").read_text().splitlines())
        files = tuple(sorted(str(p.relative_to(where)) for p in where.rglob("*")))
        shapes.add((private.taken, lines, files))
    assert len(shapes) == 1


def test_b1_the_public_page_is_identical_for_neighbours(blobs, tmp_path):
    x, y = blobs
    pages, owners = set(), set()
    for i in range(100 if THOROUGH else 5):
        data = (x.clone(), y) if i == 0 else (torch.cat([x[:i], x[i + 1 :]]), torch.cat([y[:i], y[i + 1 :]]))
        if i % 4 == 3:
            data[0][5] *= 1000.0
        where = tmp_path / str(i)
        profile = token_profile({1.0: 0.5, 0.25: 0.5}, steps=6)
        private = train(
            data, run_dir=where, name="a run", steps=6, individual_every=2, certificate=profile, batch_size=30
        )
        private.run().label(metrics={"accuracy": f"{i}%"})
        pages.add((where / "label.html").read_bytes())
        owners.add((where / "label-owner.html").read_bytes())
    assert len(pages) == 1
    assert len(owners) > 1


def test_b6_scopes_and_what_may_be_published(blobs):
    label = train(blobs, holdout=blobs).run().label()
    typical = label.readings.typical[0]
    assert typical.scope == "reading"
    assert not typical.publishable
    assert label.public().readings is None
    assert label.worst.scope == "guarantee"
    assert label.worst.kind == "worst_case"


def test_a_label_does_not_claim_a_charge_on_disk_that_was_not_made(blobs, tmp_path):
    def states(**where):
        label = train(blobs, panel=0, steps=2, **where).run().label()
        return [
            c.state for c in label.checks if "charged before" in c.text or "charged to the ledger, on disk" in c.text
        ]

    assert states() == ["open"]
    assert states(run_dir=tmp_path / "run") == states(ledger=tmp_path / "b.sqlite") == ["holds"]


def test_b10_both_panels_are_followed_and_the_larger_counts(blobs):
    x, y = blobs
    wild = (20.0 * x, 1 - y)  # held-out records with large gradients
    private = train((x, y), lr=0.001, holdout=wild, panel=100, steps=15).run()
    readings = private.label().readings
    each = {name: acc.guarantee(delta=1e-5).epsilon for name, acc in private.accountants.items()}
    assert each["held-out"] > each["training"]
    assert readings.typical[0].epsilon == pytest.approx(each["held-out"])
    assert "held-out ones gave the larger figure" in readings.panels
    alone = train((x, y), panel=100).run().label().readings
    assert "training panel only" in alone.panels
    assert any(a.code == "training-panel-only" for a in alone.typical[0].assumptions)


@pytest.mark.stat
def test_held_out_records_certify_shares_of_the_population(blobs):
    x, y = blobs
    private = train((x, y), holdout=(x.repeat(2, 1), y.repeat(2)), panel=400, steps=5).run()
    label = private.label()
    shares, own = label.readings.shares, private.accountants["held-out"].epsilons(delta=label.worst.delta)
    for percent, epsilon in shares.epsilons:
        above = int((own > epsilon).sum())  # fewer than would be seen of a population with a smaller share below
        assert epsilon == label.worst.epsilon or binom.cdf(above, len(own), 1 - percent / 100) <= shares.gamma / 3
    assert "MOST PEOPLE" in str(label)
    assert "MOST PEOPLE" not in str(label.public())


def test_b5_ordered_data_are_warned_about(blobs):
    def warned(seed, drift):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(0, 2, (300,), generator=generator)
        x = torch.randn(300, 4, generator=generator)
        if drift:
            x = x * torch.linspace(0.2, 1.0, 300)[:, None]
        private = train((x, y), lr=0.0, steps=1, panel=300, clip_norm=5.0).run()
        return any(c.state == "warning" for c in private.label().readings.checks)

    seeds = range(6)
    assert all(warned(seed, True) for seed in seeds)
    assert sum(warned(seed, False) for seed in seeds) <= 1


@pytest.mark.slow
@pytest.mark.stat
def test_b5_twenty_of_twenty():
    pvalues = {True: [], False: []}
    for seed in range(20):
        for drift in pvalues:
            generator = torch.Generator().manual_seed(100 + seed)
            y = torch.randint(0, 2, (300,), generator=generator)
            x = torch.randn(300, 4, generator=generator) * (torch.linspace(0.2, 1.0, 300)[:, None] if drift else 1.0)
            private = train((x, y), lr=0.0, steps=1, panel=300, clip_norm=5.0).run()
            pvalues[drift].append(private._stepper.state.panels["training"].ordered())
    assert sum(pvalues[True]) == 20
    assert sum(pvalues[False]) <= 1


def test_a_conformal_certificate_is_issued_or_not(blobs):
    generous = token_budget({1.0: 10})
    issued = train(blobs, certificate=generous, panel=120, steps=10).run().label(delta=0.01)
    assert issued.readings.certificate.startswith("Issued")
    mean = token_budget({0.001: 10})
    refused = train(blobs, certificate=mean, panel=120, steps=10).run().label(delta=0.01)
    assert refused.readings.certificate.startswith("Not issued")
    assert issued.declared
    assert issued.public().readings is None


def test_groups_for_the_owner(blobs):
    x, y = blobs
    label = train((x, y), groups={"class": y.numpy()}, individual_every=5).run().label()
    rows = label.readings.groups
    assert [(r.column, r.value) for r in rows] == [("class", "0"), ("class", "1")]
    assert sum(r.records for r in rows) == 300
    assert all(r.median <= r.p90 <= r.largest <= label.worst.epsilon for r in rows)
    with pytest.raises(ValueError, match="one value per training record"):
        train((x, y), groups={"class": y.numpy()[:10]})


def test_a_label_counts_what_was_done_after_a_clean_pause(blobs, tmp_path):
    """Paused, resumed and killed: the clean checkpoint does not vouch for the steps after it."""
    private, _ = start(tmp_path / "run", blobs, steps=400, panel=4)
    for step in private:
        if step.number == 12:
            break
    assert standing_of_run(tmp_path / "run").taken == 12
    resumed, _ = again(tmp_path / "run", blobs)
    steps = iter(resumed)
    for _ in range(7):
        next(steps)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    assert standing_of_run(tmp_path / "killed").taken >= 19


def test_when_a_run_fails_is_not_on_its_public_label(blobs, tmp_path):
    """A scheduler that raises, at a time that may depend on anything; the label speaks of the whole plan."""

    class Failing(torch.optim.lr_scheduler.StepLR):
        def step(self, *given):
            if self._step_count > 20 * seed:
                raise RuntimeError("gone")
            super().step(*given)

    pages = set()
    for seed in (1, 2):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = train(
            blobs,
            model,
            optimizer=optimizer,
            scheduler=Failing(optimizer, 100),
            run_dir=tmp_path / str(seed),
            name="same",
            steps=60,
            panel=0,
            seed=seed,
        )
        with pytest.raises(RuntimeError, match="gone"):
            private.run()
        assert 0 < private.taken < 60
        label = private.label()
        assert dict(label.worst.mechanism)["steps"] == 60
        pages.add(label.public().html())
        with pytest.raises(PrivacyError, match="failed halfway"):
            iter(private)
    assert len(pages) == 1


def test_s5_no_record_and_no_size_on_the_public_page(tmp_path):
    x = torch.full((1234, 4), 0.777123)
    y = torch.zeros(1234, dtype=torch.long)
    private = train((x, y), run_dir=tmp_path / "run", sample_rate=0.01, batch_size=12, steps=5, name="quiet")
    private.run().label()
    page = (tmp_path / "run" / "label.html").read_text()
    for secret in ("1234", "1,234", "0.777", "777123"):
        assert secret not in page
    run = (tmp_path / "run" / "run.json").read_text()
    assert "0.777" not in run
