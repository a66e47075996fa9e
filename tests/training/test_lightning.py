"""PyTorch Lightning with private steps."""

import importlib
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning")

from lightning.pytorch import callbacks  # noqa: E402

from tacita._check import PrivacyError  # noqa: E402
from tacita.runs import Run  # noqa: E402
from tacita.training import PrivateTraining  # noqa: E402
from tacita.training.lightning import PrivateStrategy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")


class Module(lightning.LightningModule):
    """As in Lightning's guide: it logs, and reads the trainer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"accuracy": (self(x).argmax(1) == y).float().mean()})
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def module(kind=Module):
    torch.manual_seed(0)
    return kind()


def loader(blobs, **settings):
    return DataLoader(TensorDataset(*blobs), **{"batch_size": 60, "shuffle": True, **settings})


def trainer(folder, *, given=None, **settings):
    settings = {"nominal_size": 300, "noise_multiplier": 1.0, "panel": 8, **settings}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    quiet |= {"max_steps": 4, "enable_checkpointing": False, "default_root_dir": folder, **(given or {})}
    return lightning.Trainer(strategy=PrivateStrategy(**settings), **quiet)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_takes_the_steps_of_a_private_training(tmp_path, blobs):
    """The same records, clipped, noised and moved alike: Lightning adds its optimiser and scheduler alone."""
    made, own = trainer(tmp_path, seed=3, panel=0), module()
    made.fit(own, loader(blobs))
    model = module().layer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PrivateTraining(
        model,
        nn.functional.cross_entropy,
        blobs,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4),
        nominal_size=300,
        batch_size=60,
        noise_multiplier=1.0,
        steps=4,
        panel=0,
        seed=3,
    ).run()
    torch.testing.assert_close(weights(own), weights(model))
    assert made.global_step == made.strategy.private.taken == 4
    assert made.strategy.private.status == "done"


def test_epochs_are_of_the_declared_size_and_only_epsilon_is_logged(tmp_path, blobs):
    made = trainer(tmp_path, nominal_size=250, given={"max_steps": -1, "max_epochs": 2})
    data = lightning.LightningDataModule()
    data.train_dataloader = lambda: loader(blobs)
    made.fit(module(), datamodule=data)
    private = made.strategy.private
    assert (private.plan.steps, private.plan.batch_size, private.taken) == (10, 60.0, 10)
    assert set(made.logged_metrics) == {"epsilon"}
    label = made.strategy.label()
    assert float(made.logged_metrics["epsilon"]) >= label.worst.epsilon - 1e-6  # in float32
    assert label.purpose == "A Module model trained with DP-SGD."


class Writes(Module):
    """Hands exact figures to the logger itself, past `self.log`."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"exact": loss.detach()}, step=self.global_step)
        self.logger.experiment.log_metrics({"exact": 1.0}, step=self.global_step)
        return loss


def test_what_a_training_step_hands_to_the_logger_is_dropped(tmp_path, blobs):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    made, own = trainer(tmp_path, given={"logger": logger, "log_every_n_steps": 1}), module(Writes)
    made.fit(own, loader(blobs))
    assert own.logger is logger
    written = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "exact" not in written
    assert written.count("\n") == 1 + 4


class Estimates(Module):
    """Sizes its scheduler as Lightning's guide says, which reads the loader before there is an optimiser."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_a_scheduler_may_be_as_long_as_the_trainer_estimates(tmp_path, blobs):
    made = trainer(tmp_path, nominal_size=240, given={"max_steps": -1, "max_epochs": 2})
    made.fit(module(Estimates), loader(blobs))
    assert made.strategy.private.taken == 8
    assert made.strategy.lr_scheduler_configs[0].scheduler.get_last_lr() == [0.0]


def test_a_trial_run_of_lightning_is_one_step(tmp_path, blobs):
    made = trainer(tmp_path, given={"fast_dev_run": True})
    made.fit(module(), loader(blobs))
    assert (made.strategy.private.plan.steps, made.strategy.private.taken) == (1, 1)


def test_validation_afterwards_works_as_ever(tmp_path, blobs):
    made, own = trainer(tmp_path), module()
    made.fit(own, loader(blobs))
    assert made.validate(own, loader(blobs, shuffle=False), verbose=False)[0]["val_loss"] > 0.0


def test_checkpoints_of_lightning_hold_released_weights_and_none_of_a_step_that_failed(tmp_path, blobs):
    made, own = trainer(tmp_path, given={"enable_checkpointing": True}), module()
    made.fit(own, loader(blobs))
    (file,) = tmp_path.rglob("*.ckpt")
    again = Module.load_from_checkpoint(file)
    assert torch.equal(weights(again), weights(own))
    private = made.strategy.private
    load_model(exported := Module(), private.export(tmp_path / "model.safetensors"))  # by the module's own names
    assert torch.equal(weights(exported), weights(own))
    private._stepper.state.facts = private._stepper.state.facts.with_status("failed")
    with pytest.raises(PrivacyError, match="failed halfway"):
        made.save_checkpoint(tmp_path / "more.ckpt")


class Stop(lightning.Callback):
    """Ends the fit, from outside of the data."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        assert outputs == {}  # no exact loss
        trainer.should_stop = trainer.global_step == 2


def test_a_run_that_was_stopped_goes_on_from_its_directory(tmp_path, blobs):
    kept = {"run_dir": tmp_path / "run"}
    first = trainer(tmp_path, given={"callbacks": [Stop()]}, **kept)
    first.fit(module(), loader(blobs))
    assert first.strategy.private.status == "interrupted"
    with pytest.raises(PrivacyError, match="another plan"):
        trainer(tmp_path, resume=True, clip_norm=2.0, **kept).fit(module(), loader(blobs))
    again = trainer(tmp_path, resume=True, given={"max_steps": 4}, **kept)
    again.fit(module(), loader(blobs))
    assert again.strategy.private.taken == 4
    assert again.strategy.lr_scheduler_configs[0].scheduler.get_last_lr() == [0.0]
    again.strategy.label()
    assert Run.open(tmp_path / "run").facts.status == "done"
    with pytest.raises(PrivacyError, match="trained already"):
        again.fit(module(), loader(blobs))
    with pytest.raises(TypeError, match=r"Trainer\(max_steps=…\)"):
        PrivateStrategy(steps=4)
    with pytest.raises(ValueError, match="needs run_dir"):
        PrivateStrategy(resume=True)


class Alone(Module):
    """Records are single tensors, or lists of one, and the step takes no index."""

    def training_step(self, batch):
        batch = batch[0] if isinstance(batch, list | tuple) else batch
        return {"loss": self(batch).square().sum(), "norms": batch.norm()}


@pytest.mark.parametrize("listed", [True, False])
def test_records_of_one_part_and_losses_in_a_dict(tmp_path, blobs, listed):
    x = blobs[0]
    data = DataLoader(TensorDataset(x) if listed else list(x), batch_size=60)
    made, own = trainer(tmp_path), module(Alone)
    made.fit(own, data)
    own.load_state_dict(module(Alone).state_dict())
    norms = made.strategy.private.mechanism.norms("training", np.arange(3), rng=np.random.default_rng(0))
    for place in range(3):
        own.zero_grad()
        own(x[place : place + 1]).square().sum().backward()
        assert norms[place] == pytest.approx(float(torch.cat([p.grad.flatten() for p in own.parameters()]).norm()))


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Two(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Plateau(Module):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


class Moves(Module):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


class Paces(Module):
    def training_step(self, batch, batch_idx):
        self.lr_schedulers().step()
        return super().training_step(batch, batch_idx)


class Unfreezes(callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        pass

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


class Norms(lightning.Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass


class Mixes(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


class Remembers(Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(len(batch))
        return super().training_step(batch, batch_idx)


class Counts(nn.Module):
    """As a metric of torchmetrics does."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def forward(self, x):
        self.total += 1
        return x


class Measures(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 2), Counts())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("kind", "error", "why"),
    [
        (Manual, ValueError, "steps by itself, uncharged"),
        (Two, RuntimeError, "multiple optimizers is only supported with manual"),  # Lightning's own words
        (Plateau, PrivacyError, "scheduler looks at exact figures"),
        (Moves, ValueError, "on_after_batch_transfer is never called"),
        (Paces, PrivacyError, "training_step moves a scheduler"),
        (Mixes, PrivacyError, "BatchNorm1d at 'layer.1' mixes records"),
        (Measures, PrivacyError, r"^'model.layer.1.total' changes"),
        (Remembers, PrivacyError, "changes whenever the model or the loss runs"),
    ],
)
def test_modules_that_do_not_go_with_private_steps_are_refused_with_the_reason(tmp_path, blobs, kind, error, why):
    made = trainer(tmp_path, run_dir=tmp_path / "run")
    with pytest.raises(error, match=why):
        made.fit(module(kind), loader(blobs))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"accumulate_grad_batches": 2}, ValueError, "batch_size is the whole batch"),
        ({"gradient_clip_val": 1.0}, ValueError, "clip_norm=… clips that of each record"),
        ({"limit_train_batches": 0.5}, ValueError, "shortens epochs"),
        ({"limit_train_batches": 1}, ValueError, "shortens epochs"),
        ({"overfit_batches": 2}, ValueError, "leaves records out"),
        ({"precision": "bf16-true"}, ValueError, "use '32-true' or 'bf16-mixed'"),
        ({"max_steps": -1, "max_epochs": -1}, ValueError, "Declare the steps"),
        ({"callbacks": [callbacks.EarlyStopping("val_loss")]}, PrivacyError, "EarlyStopping decides"),
        (
            {"callbacks": [callbacks.ModelCheckpoint(monitor="x")], "enable_checkpointing": True},
            PrivacyError,
            "monitor",
        ),
        ({"callbacks": [callbacks.StochasticWeightAveraging(0.1)]}, PrivacyError, "steps of its own"),
        ({"callbacks": [Unfreezes()]}, PrivacyError, "one run after the other"),
        ({"callbacks": [Norms()]}, ValueError, "on_before_optimizer_step is never called"),
    ],
)
def test_trainers_that_do_not_go_with_private_steps_are_refused_with_the_reason(tmp_path, blobs, given, error, why):
    with pytest.raises(error, match=why):
        trainer(tmp_path, given=given).fit(module(), loader(blobs))


def test_validation_and_a_checkpoint_of_lightning_within_a_fit_are_refused(tmp_path, blobs):
    with pytest.raises(PrivacyError, match="limit_val_batches=0"):
        trainer(tmp_path).fit(module(), loader(blobs), loader(blobs, shuffle=False))
    made, file = trainer(tmp_path), tmp_path / "made.ckpt"
    made.fit(module(), loader(blobs))
    made.save_checkpoint(file)
    with pytest.raises(ValueError, match="resume=True"):
        trainer(tmp_path).fit(module(), loader(blobs), ckpt_path=file, weights_only=False)
    with pytest.raises(PrivacyError, match="call trainer"):
        PrivateStrategy(nominal_size=300).label()


def test_mixed_precision_gives_the_gradient_of_a_loop(tmp_path, blobs):
    made, own = trainer(tmp_path, given={"precision": "bf16-mixed", "max_steps": 1}), module()
    made.fit(own, loader(blobs))
    found = made.strategy.private.mechanism.norms("training", np.arange(3), rng=np.random.default_rng(0))
    for place in range(3):
        own.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            nn.functional.cross_entropy(own(blobs[0][place : place + 1]), blobs[1][place : place + 1]).backward()
        expected = torch.cat([p.grad.flatten() for p in own.parameters()]).norm()
        assert found[place] == pytest.approx(float(expected), rel=3e-2)


def test_a_missing_extra_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "tacita.training.lightning")
    with pytest.raises(ImportError, match=r"pip install -e '\.\[lightning\]' in the checkout of tacita"):
        importlib.import_module("tacita.training.lightning")


def test_people_with_several_records_are_protected_and_resumed(tmp_path, blobs):
    people = {"person": np.arange(300) % 50, "records_per_person": 3, "nominal_size": 50, "panel": 0}
    first = trainer(tmp_path, given={"max_steps": 2}, run_dir=tmp_path / "run", **people)
    first.fit(module(), loader(blobs, batch_size=10))
    assert first.strategy.label().worst.unit == "person"
    assert len(first.strategy.private.mechanism.parts["training"]) == 50
    again = trainer(tmp_path, given={"max_steps": 2}, run_dir=tmp_path / "run", resume=True, **people)
    again.fit(module(), loader(blobs, batch_size=10))
    assert again.strategy.private.plan.unit == "person"
