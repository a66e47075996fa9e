"""PyTorch Lightning with private steps: a strategy for its Trainer; the LightningModule stays as it is."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita.label import Label
from tacita.training.adapters import as_loss, steps_in_epoch
from tacita.training.loop import PrivateTraining
from tacita.training.mechanism import plain_state
from tacita.training.plan import Plan, declared_rate
from tacita.training.records import Records
from tacita.training.settings import Books, Follow, Whose, grouped
from tacita.training.stepping import Step

try:
    from lightning.pytorch import callbacks
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise _check.missing("PrivateStrategy needs PyTorch Lightning", "lightning") from error

_AS_LARGE = (
    "the DataLoader's batch_size is the whole batch, as large as you like: it is taken in chunks that fit memory"
)
_UNFIT: dict[str, tuple[tuple[Any, ...], str]] = {  # argument of the Trainer: what it may be, and why nothing else
    "accumulate_grad_batches": ((1,), f"accumulates gradients; leave it out: {_AS_LARGE}."),
    "gradient_clip_val": ((None,), "clips the whole gradient; leave it out: clip_norm=… clips that of each record."),
    "overfit_batches": ((0, 0.0), "leaves records out; pass a Subset."),
    "reload_dataloaders_every_n_epochs": ((0,), "changes the records within a run; leave it out."),
    "precision": (("32-true", "bf16-mixed"), "has no private form; use '32-true' or 'bf16-mixed'."),
    "ckpt_path": ((None,), "would go on without its accounts; use PrivateStrategy(run_dir=…, resume=True)."),
}
_ELSEWHERE = "is never called, for gradients are computed for each record alone; move what it does into training_step"
_HOOKS = (
    *("backward", "on_before_backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping"),
    *("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
)
_LOOKS = "decides by figures that no label covers"
_UNFIT_CALLBACKS = {
    callbacks.EarlyStopping: f"{_LOOKS}: stop by released parameters, or declare stops=….",
    callbacks.LearningRateFinder: f"{_LOOKS}: try rates on public data.",
    callbacks.BatchSizeFinder: f"is not needed: {_AS_LARGE}.",
    callbacks.GradientAccumulationScheduler: f"accumulates gradients: {_AS_LARGE}.",
    callbacks.BaseFinetuning: (
        "trains other parameters as it goes: take one run after the other, which share a ledger, each with its own "
        "requires_grad."
    ),
    callbacks.StochasticWeightAveraging: "takes steps of its own: average released checkpoints instead.",
}


class PrivateStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # the types of Lightning are not checked
    """A strategy of `lightning.Trainer` that trains with DP-SGD, and says what it leaks.

    The loss of a record is the module's `training_step` on a batch of that record alone. The batch is sampled by
    independent coins, gradients are clipped and noised, and every step is charged before it is released, as by
    `PrivateTraining`. Optimiser, scheduler, callbacks, loggers and checkpoints are Lightning's: `max_steps`, or
    `max_epochs` of the declared size, are the steps, and the DataLoader's `batch_size` is the planned batch.

    Only what is public is logged, epsilon: what `training_step` logs of a record is dropped. The exact loss of every
    step is in the run directory, in metrics.jsonl, for the data's owner. Validate after the training:
    `trainer.validate` works as ever.

    Args:
        device: Where to train.
        resume: Whether to go on with the run in `run_dir`.
        chunk: Records differentiated at once; by default it adapts to memory.
        settings: Single settings of `Plan.declare`, `Whose`, `Follow` and `Books`: `nominal_size`, `target` or
            `noise_multiplier`, `clip_norm`, `holdout`, `ledger`, `run_dir`, and so on.

    Raises:
        PrivacyError: When it begins to fit, if a callback or a loop looks at private records to decide something.
        ValueError: If the module or the Trainer does something that does not go with private steps.

    Guarantee:
        That of `PrivateTraining`.
    """

    private: PrivateTraining | None = None
    """The training underneath, once it has begun: its accounts, and how to end it."""
    _loader: Any = None
    _plan: Plan
    _steps: Iterator[Step]

    def __init__(
        self,
        *,
        device: torch.device | str = "cpu",
        resume: bool = False,
        chunk: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(device=device)
        self._follow = grouped("follow", Follow, None, settings)
        self._books = grouped("books", Books, None, settings)
        self._whose = grouped("whose", Whose, None, settings)
        self._settings, self._resume, self._chunk = settings, resume, chunk
        if "steps" in settings:
            raise TypeError("steps is that of the Trainer: set Trainer(max_steps=…), or max_epochs=….")
        if resume and self._books.run_dir is None:
            raise ValueError("resume=True needs run_dir=…, where the run is kept.")

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label, and write it to the run directory; see `PrivateTraining.label`."""
        if self.private is None:
            raise PrivacyError("No step was taken yet: call trainer.fit() first.")
        return self.private.label(delta=delta, metrics=metrics)

    def setup(self, trainer: Any) -> None:
        """Refuse what does not go with private steps, before anything is read."""
        self._loader = None
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            _refuse(trainer, self.lightning_module, self)
            if self.private is not None:
                raise PrivacyError("This strategy has trained already: make a new one, or resume its run.")

    def process_dataloader(self, dataloader: object) -> object:
        """Keep the DataLoader for the training, and return the steps of an epoch in its place.

        It may be asked for before there is an optimiser, as by `trainer.estimated_stepping_batches`.
        """
        trainer = self.lightning_module.trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return dataloader
        if self._loader is not None or not isinstance(dataloader, torch.utils.data.DataLoader):
            raise ValueError("Private training takes one DataLoader: put all records into one dataset.")
        self._loader, self._plan = dataloader, self._declared(trainer, dataloader)
        return range(steps_in_epoch(self._plan.sample_rate))

    def on_train_start(self) -> None:
        """Begin the training on the records of the DataLoader."""
        super().on_train_start()
        self.private = self._begin(self._loader, self._plan)
        self._steps = self.private.steps()

    def training_step(self, *args: Any, **kwargs: Any) -> None:
        """Take a private step; the optimiser has moved the parameters when it returns."""
        step, module = next(self._steps, None), self.lightning_module
        if step is None or step.number == step.plan.steps:  # a resumed run ends within an epoch
            module.trainer.should_stop = True
        if step is not None:
            module.log("epsilon", float(round_up_text(step.spent.epsilon)), prog_bar=True, batch_size=1)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> None:
        """Take a step, which includes the optimiser's."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*training_step` returned `None")  # the loss is for the owner
            closure()

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint of Lightning; refused after a step that failed or that the ledger lacks."""
        if self.private is not None and self.private.taken:
            self.private.require_released()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def teardown(self) -> None:
        """Leave a run that can be resumed."""
        if self.private is not None:
            self.private.pause()
        super().teardown()

    def _begin(self, loader: Any, plan: Plan) -> PrivateTraining:
        module, dtype = self.lightning_module, next(p.dtype for p in self.lightning_module.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the batches are replaced is what this class is for
            records = Records(loader, dtype=dtype)
        attached: dict[str, Any] = {"optimizer": self.optimizers[0], "chunk": self._chunk, "whose": self._whose}
        attached["companions"] = {f"scheduler {i}": _Kept(c.scheduler) for i, c in enumerate(self.lr_scheduler_configs)}
        seen = as_loss(module, self._loss, listed=records.listed)
        if not self._resume:
            return PrivateTraining(seen, None, records, plan=plan, follow=self._follow, books=self._books, **attached)
        attached["holdout"] = self._follow.holdout
        private = PrivateTraining.resume(str(self._books.run_dir), seen, None, records, **attached)
        if private.plan.frozen() != plan.frozen():
            raise PrivacyError("The run was started with another plan; resume it with the arguments of its start.")
        return private

    def _loss(self, module: Any, batch: Any) -> Tensor:
        indexed = len(inspect.signature(module.training_step).parameters) > 1
        before = self._paces()
        with self.precision_plugin.train_step_context(), _silent(module):
            out = module.training_step(*((batch, 0) if indexed else (batch,)))
        if self._paces() != before:
            raise PrivacyError("training_step moves a scheduler, once for each chunk: leave that to Lightning.")
        loss: Tensor = out["loss"] if isinstance(out, Mapping) else out
        return loss

    def _paces(self) -> list[Any]:
        return [getattr(config.scheduler, "last_epoch", None) for config in self.lr_scheduler_configs]

    def _declared(self, trainer: Any, loader: Any) -> Plan:
        """Return the plan that the Trainer, the loader and the settings declare."""
        settings = {"batch_size": loader.batch_size, **self._settings}
        _, rate = declared_rate(settings.get("sample_rate"), settings["batch_size"], settings.get("nominal_size"))
        epochs = trainer.max_epochs * steps_in_epoch(rate) if (trainer.max_epochs or -1) > 0 else None
        ends = [steps for steps in (epochs, trainer.max_steps) if steps is not None and steps > 0]
        if not ends:
            raise ValueError("Declare the steps: Trainer(max_steps=…), or max_epochs=….")
        return Plan.declare(steps=min(ends), **settings)


class _Kept:
    """A scheduler's state for a checkpoint."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return plain_state(self._scheduler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


@contextmanager
def _silent(module: Any) -> Iterator[None]:
    """Drop what a training step logs, or hands to the loggers themselves: it is of one record."""
    trainer = module._trainer  # None in a copy
    loggers = [] if trainer is None else trainer.loggers
    module.log = module.log_dict = lambda *args, **kwargs: None
    if loggers:
        trainer.loggers = [DummyLogger() for _ in loggers]
    try:
        yield
    finally:
        del module.log, module.log_dict
        if loggers:
            trainer.loggers = loggers


def _refuse(trainer: Any, module: Any, strategy: Any) -> None:
    """Refuse a Trainer, or a module, that does something which does not go with private steps."""
    for name, (allowed, why) in _UNFIT.items():
        value = getattr(trainer, name)
        if value not in allowed:
            raise ValueError(f"{name}={value!r} {why}")
    few = trainer.limit_train_batches
    if not (isinstance(few, float) and few == 1.0) and not trainer.fast_dev_run:  # 1 is a single batch
        raise ValueError(
            f"limit_train_batches={few!r} shortens epochs; leave it out, and take fewer steps (max_steps)."
        )
    if not module.automatic_optimization:
        raise ValueError("Manual optimisation steps by itself, uncharged. Set automatic_optimization=True.")
    for hook in _HOOKS:
        for part in (module, trainer.datamodule, *trainer.callbacks):
            if hasattr(part, hook) and is_overridden(hook, part):
                raise ValueError(f"{hook} {_ELSEWHERE}.")
    if trainer.enable_validation:
        raise PrivacyError(
            "Validation logs exact figures as the model trains: leave out its loader, or set limit_val_batches=0, and "
            "validate afterwards."
        )
    for config in strategy.lr_scheduler_configs:
        if config.reduce_on_plateau:
            raise PrivacyError("The scheduler looks at exact figures; use another one.")
    for callback in trainer.callbacks:
        for kind, why in _UNFIT_CALLBACKS.items():
            if isinstance(callback, kind):
                raise PrivacyError(f"{kind.__name__} {why}")
        if isinstance(callback, callbacks.ModelCheckpoint) and callback.monitor is not None:
            raise PrivacyError(f"ModelCheckpoint(monitor={callback.monitor!r}) {_LOOKS}: leave out monitor.")
