"""Weights out: alone, tied tensors once, and only what was released."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from tacita import PrivacyError
from tacita.runs import Run, RunError
from tacita.training import PrivateTraining
from tests.cli.command import tacita
from tests.training.trainings import again, loss_fn, start


class Tied(nn.Module):
    """A language model in small: the embedding is the output layer, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 4)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 11, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(3.0)[:, None])

    def forward(self, tokens):
        return self.lm_head(self.norm(self.wte(tokens) + self.positions)).transpose(1, 2)


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 11, (60, 3), generator=generator), torch.randint(0, 11, (60, 3), generator=generator)


def train_tied(data, **settings):
    model = Tied()
    sizes = {"batch_size": 20, "nominal_size": 60, "steps": 6, "noise_multiplier": 1.0, "panel": 0}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return PrivateTraining(model, loss_fn, data, optimizer=optimizer, **{**sizes, **settings}), model


def test_tied_weights_are_stored_once_and_come_back_tied(tokens, tmp_path):
    private, model = train_tied(tokens, run_dir=tmp_path / "run")
    for step in private:
        if step.number == 3:
            break
    with safe_open(max((tmp_path / "run" / "checkpoints").glob("*.weights.safetensors")), "pt") as file:
        assert set(file.keys()) == {"wte.weight", "norm.weight", "norm.bias", "positions"}
        assert file.metadata() == {"format": "pt", "lm_head.weight": "wte.weight"}
    other = Tied()
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    resumed = PrivateTraining.resume(tmp_path / "run", other, loss_fn, tokens, optimizer=optimizer)
    assert torch.equal(other.wte.weight, model.wte.weight)
    assert other.lm_head.weight is other.wte.weight
    resumed.run()
    assert other.lm_head.weight is other.wte.weight
    assert resumed.taken == 6


def test_exported_weights_are_read_by_plain_torch(tokens, tmp_path):
    private, model = train_tied(tokens)
    assert private.run().export(tmp_path / "model.safetensors") == tmp_path / "model.safetensors"
    plain = Tied()
    load_model(plain, tmp_path / "model.safetensors")  # strict, and knows tied tensors
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in model.state_dict().items())
    again = Tied()
    missing, unexpected = again.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    assert torch.equal(again.lm_head.weight, model.wte.weight)


def test_a_finished_run_holds_its_weights_alone(blobs, tmp_path):
    private, model = start(tmp_path / "run", blobs, steps=3, panel=0)
    private.run()
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert kept.keys() == model.state_dict().keys()
    nn.Linear(4, 2).load_state_dict(kept)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    digest, name = (tmp_path / "run" / "weights.sha256").read_text().split()
    assert (len(digest), name) == (64, "model.safetensors")


def test_what_depends_on_records_is_in_files_that_say_so(blobs, tmp_path):
    """Whoever is given everything but the files named sensitive gets weights and nothing else."""
    private, model = start(tmp_path / "run", blobs, groups={"class": blobs[1].numpy()}, individual_every=1)
    private.advance()
    private.pause()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        part = file.name.split(".", 1)[1]
        assert part in ("weights.safetensors", "sensitive.safetensors", "sensitive.json")
        if part == "weights.safetensors":
            assert load_file(file).keys() == model.state_dict().keys()
    state, document = Run(tmp_path / "run").load()
    assert {"model", "optimizer", "panels", "groups"} == state.keys()
    assert {"facts", "data", "panels"} <= document.keys()


def test_a_failed_step_is_never_exported(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs)
    with pytest.raises(PrivacyError, match="No step was taken"):
        private.export(tmp_path / "w")
    assert tacita("export", tmp_path / "run", tmp_path / "w").returncode == 2
    private.advance()
    private.optimizer.step = None
    with pytest.raises(TypeError):
        private.advance()
    with pytest.raises(PrivacyError, match="failed halfway"):
        private.export(tmp_path / "w")
    done = tacita("export", tmp_path / "run", tmp_path / "w")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "failed halfway: resume it" in done.stderr
    assert not (tmp_path / "w").exists()


def test_weights_that_were_not_charged_are_never_exported(blobs, tmp_path):
    """A checkpoint that claims more steps than the ledger knows, and an object that another one has replaced."""
    private, _ = start(tmp_path / "run", blobs, steps=400, panel=0)
    for step in private:
        if step.number == 20:
            break
    other, _ = again(tmp_path / "run", blobs)
    with pytest.raises(PrivacyError, match="resumed"):
        private.export(tmp_path / "w")
    other.export(tmp_path / "w")
    other.pause()
    folder = tmp_path / "run" / "checkpoints"
    for file in list(folder.glob("step-00000020.*")):
        file.rename(folder / file.name.replace("20", "90"))
    document = json.loads((folder / "step-00000090.sensitive.json").read_text())
    (folder / "step-00000090.sensitive.json").write_text(json.dumps({**document, "step": 90}))
    done = tacita("export", tmp_path / "run", tmp_path / "v")
    assert done.returncode == 2
    assert "fewer" in done.stderr or "ledger" in done.stderr
    assert not (tmp_path / "v").exists()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.norm.eval()

    def forward(self, x):
        return self.linear(self.norm(x))


def test_a_buffer_that_saw_records_is_never_released(blobs, tmp_path):
    """An evaluation in training mode moves BatchNorm's statistics, by private records and without noise."""
    model = Normed()
    private = PrivateTraining(
        model, loss_fn, blobs, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch_size=30, nominal_size=300,
        steps=5, noise_multiplier=1.0, panel=0, run_dir=tmp_path / "run",
    )  # fmt: skip
    private.advance()
    private.export(tmp_path / "w")
    model.norm.train()
    model(blobs[0])
    with pytest.raises(PrivacyError, match=r"norm\.running_mean"):
        private.export(tmp_path / "v")
    with pytest.raises(PrivacyError, match=r"norm\.running_mean"):
        private.pause()
    assert not (tmp_path / "v").exists()


def test_the_command_writes_what_plain_torch_reads(blobs, tmp_path):
    private, model = start(tmp_path / "run", blobs, steps=3, panel=0)
    private.run()
    done = tacita("export", tmp_path / "run", tmp_path / "w.safetensors", "--json")
    assert json.loads(done.stdout)["written"] == [str(tmp_path / "w.safetensors")]
    assert torch.equal(load_file(tmp_path / "w.safetensors")["weight"], model.weight)
    assert tacita("export", tmp_path / "run", tmp_path / "w.safetensors").returncode == 2  # nothing is overwritten
    assert tacita("export", tmp_path / "run").stdout.count("Written:") == 2
    with pytest.raises(RunError, match="no checkpoint"):
        Run.create(tmp_path / "bare").write_weights()


def test_checkpoints_of_another_version_are_refused_by_name(blobs, tmp_path):
    private, _ = start(tmp_path / "run", blobs)
    private.advance()
    private.pause()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.rename(file.with_name(file.name.replace(".sensitive", "").replace(".weights", "")))
    with pytest.raises(RunError, match="written by another version"):
        again(tmp_path / "run", blobs)
    assert "another version" in tacita("label", tmp_path / "run").stderr


def test_tensors_that_overlap_are_kept_apart(tmp_path):
    """Views of one memory, whole or in part: safetensors refuses them, and each comes back as it was."""
    run, whole = Run.create(tmp_path / "run"), torch.arange(6.0)
    state = {"a": whole, "b": whole, "turned": whole.view(2, 3).T, "part": whole[1:3], "empty": torch.ones(0), "n": 1}
    run.save(1, {"deep": [state, {"deep.0": 2}]}, {}, weights=state)
    found, _ = run.load()
    for kept in (found["deep"][0], found["model"]):
        assert kept["a"] is kept["b"]
        assert all(torch.equal(kept[name], state[name]) for name in ("a", "turned", "part", "empty"))
        assert kept["n"] == 1
    assert np.array_equal(run.load()[0]["deep"][1]["deep.0"], 2)
