"""`transformers.Trainer` with private steps: its arguments, optimiser, scheduler, collator and callbacks stay."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita._numbers import delta_text, round_up_text
from tacita.label import Label
from tacita.training.adapters import as_loss, steps_in_epoch
from tacita.training.loop import PrivateTraining
from tacita.training.plan import Plan, declared_rate
from tacita.training.records import Records
from tacita.training.settings import Books, Follow, Whose, grouped
from tacita.training.stepping import Step

try:
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import TrainOutput
except ImportError as error:
    raise _check.missing("PrivateTrainer needs transformers and accelerate", "huggingface") from error

_AS_LARGE = (
    "per_device_train_batch_size is the whole batch, as large as you like: it is taken in chunks that fit memory"
)
_CHUNKS = "leave it out: a batch is taken in chunks that fit memory (chunk=…)"
_LOOKS = "decides by records that were evaluated exactly, which no label covers"
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_SHARDS = "shards the model; train on one device, or with torchrun, where each process holds a copy."
_UNFIT: dict[str, tuple[tuple[Any, ...], str]] = {  # argument: what it may be, and why nothing else
    "gradient_accumulation_steps": ((1,), f"accumulates gradients; set it to 1: {_AS_LARGE}."),
    "auto_find_batch_size": ((False,), f"is not needed; {_AS_LARGE}."),
    "fp16": ((False,), "scales the loss by what overflows in a batch; use bf16=True, or neither."),
    "torch_compile": ((False,), "compiles whole batches; leave it out."),
    "use_liger_kernel": ((False,), "replaces layers by kernels that have no per-record form; leave it out."),
    "neftune_noise_alpha": ((), "changes embeddings by hooks outside of the loss; leave it out."),
    "gradient_checkpointing": ((False,), f"recomputes what a batch needs; {_CHUNKS}."),
    "activation_checkpointing": ((False,), f"recomputes what a batch needs; {_CHUNKS}."),
    "deepspeed": (("",), _SHARDS),
    "fsdp": (("", [], False), _SHARDS),
    "parallelism_config": ((), _SHARDS),
    "train_sampling_strategy": (("random", "sequential"), "makes batches by what is in records; leave it out."),
    "group_by_length": ((False,), "makes batches by what is in records; leave it out."),
}
_LOOKING: dict[str, tuple[tuple[Any, ...], str]] = {
    "load_best_model_at_end": ((False,), f"{_LOOKS}; leave it out, or choose by public data afterwards."),
    "save_strategy": (("no", "steps", "epoch"), f"{_LOOKS}; save by 'steps' or 'epoch'."),
    "eval_strategy": (
        ("no",),
        "logs exact figures as the model trains; set it to 'no' and call evaluate() afterwards.",
    ),
    "eval_on_start": ((False,), "logs exact figures; leave it out and call evaluate() afterwards."),
}
_UNCALLED = ("training_step", "_prepare_inputs", "get_batch_samples", "_inner_training_loop")  # of a Trainer
_UNCALLED_EVENTS = ("on_pre_optimizer_step", "on_optimizer_step")
_PLATEAU = ("reduce_lr_on_plateau", "greedy")


class PrivateTrainer(Trainer):  # type: ignore[misc]  # the types of transformers are not checked
    """A `transformers.Trainer` that trains with DP-SGD, and says what it leaks.

    The batch is sampled by independent coins, gradients are clipped for each record and noised, and every step is
    charged before it is released, as by `PrivateTraining`. The model's own loss (`compute_loss`, `compute_loss_func`,
    label smoothing), the columns, the collator, the optimiser, the scheduler, the device and the callbacks are the
    Trainer's. The arguments say it all: `max_steps`, or `num_train_epochs` of the declared size, are the steps,
    `per_device_train_batch_size`, times the number of processes, is the planned batch, and `max_grad_norm` is the clip
    norm of each record unless `clip_norm=` is given. Each record is collated alone: pad all of them to one length.

    Only what is public is logged and returned: epsilon, delta and the learning rate. The exact loss of every step is in
    the run directory, in metrics.jsonl, for the data's owner. `evaluate` works as ever, after the training: its
    figures go to the owner's label, not to loggers and callbacks.

    Args:
        model: As of `Trainer`.
        args: As of `Trainer`; what no private step can keep to is refused with what to do instead. Checkpoints hold
            weights and what is logged. `train(resume_from_checkpoint=True)` goes on from the run directory.
        chunk: Records differentiated at once; by default it adapts to memory.
        settings: All other arguments of `Trainer`, and single settings of `Plan.declare`, `Whose`, `Follow` and
            `Books`: `nominal_size`, `target` or `noise_multiplier`, `holdout`, `ledger`, `run_dir`, and so on.

    Raises:
        PrivacyError: If an argument or a callback looks at private records to decide something.
        ValueError: If an argument does not go with private steps.

    Guarantee:
        That of `PrivateTraining`.
    """

    private: PrivateTraining | None = None
    """The training underneath, once it has begun: its accounts, and how to end it."""
    control: Any

    def __init__(self, model: Any = None, args: Any = None, *, chunk: int | None = None, **settings: Any) -> None:
        args = TrainingArguments("tmp_trainer") if args is None else copy.copy(args)
        _refuse(args, settings.get("callbacks") or ())
        for name in _UNCALLED:
            if getattr(type(self), name, None) is not getattr(Trainer, name, None):
                raise ValueError(f"{name} is never called: records run one by one; override compute_loss instead.")
        args.save_only_model = True  # whatever else there is to keep is in the run directory
        theirs = {name: settings.pop(name) for name in list(settings) if name in _THEIRS}
        super().__init__(model=model, args=args, **theirs)
        if self.args.n_gpu > 1:
            raise ValueError("Several GPUs in one process (DataParallel) mix chunks: start it with torchrun instead.")
        self._follow = grouped("follow", Follow, None, settings)
        self._books = grouped("books", Books, None, settings)
        self._whose = grouped("whose", Whose, None, settings)
        self._require_apart()
        self.plan = _declared(self.args, settings)
        self._chunk, self._quiet, self._figures = chunk, False, dict[str, str]()

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Take the steps of the plan.

        Args:
            resume_from_checkpoint: True goes on with the run in `run_dir`.
            trial: Of a search; refused.
            ignore_keys_for_eval: Without effect, since nothing is evaluated meanwhile.

        Returns:
            A `TrainOutput` of public figures: the steps taken and their epsilon. Its loss is NaN.
        """
        if trial is not None:
            raise PrivacyError("trial: a search over private runs needs a shared ledger; run each alone.")
        if isinstance(resume_from_checkpoint, str):
            raise ValueError("The run goes on from its run directory: pass resume_from_checkpoint=True and run_dir=….")
        if self.private is None:
            self.private = self._begin(resume=bool(resume_from_checkpoint))
        self._to_train_mode()
        state = self.state
        state.global_step, state.max_steps = self.private.taken, self.plan.steps
        state.num_train_epochs = math.ceil(self.plan.steps / steps_in_epoch(self.plan.sample_rate))
        state.train_batch_size = round(self.plan.batch_size)
        state.compute_steps(self.args, self.plan.steps)
        spent: dict[str, float | str] = {}
        for event in ("on_train_begin", "on_epoch_begin", "on_step_begin"):
            self._tell(event)
        self.is_in_train = True
        try:
            for step in self.private:
                spent = {**_spent(step), "delta": delta_text(step.spent.delta)}  # a text: log_metrics rounds numbers
                self._after(step)
                if self.control.should_training_stop:
                    break
                self._tell("on_step_begin")
        finally:
            self.is_in_train = False
        self._tell("on_train_end")
        return TrainOutput(state.global_step, math.nan, spent)

    def label(self, *, delta: float | None = None, metrics: Mapping[str, str] | None = None) -> Label:
        """Return the privacy label, and write it to the run directory; see `PrivateTraining.label`.

        Args:
            delta: Total failure probability of every figure on it.
            metrics: Results for the owner, beside those of `evaluate`.
        """
        return self._begun.label(delta=delta, metrics={**self._figures, **(metrics or {})})

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `Trainer` does. What it returns is exact, so it goes to the owner's label and to no logger.

        A choice that is made by it, if the records are private, is covered by no label.
        """
        self._require_trained("evaluate")
        with self._silent():
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        self._figures |= {k: f"{v:.4g}" for k, v in found.items() if k != "epoch" and not k.endswith(_SPEED)}
        return found

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict as `Trainer` does. The figures in what it returns are exact, so callbacks do not get them."""
        self._require_trained("predict")
        with self._silent():
            return super().predict(*args, **kwargs)

    def _require_trained(self, name: str) -> None:
        if self.is_in_train:
            raise PrivacyError(f"{name}() while the model trains shows exact figures to callbacks: call it afterwards.")

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Log nothing meanwhile, and give callbacks NaN in the place of every figure."""
        handler, before = self.callback_handler, (self._quiet, self.callback_handler.call_event)

        def call(event: str, *args: Any, **told: Any) -> Any:
            if told.get("metrics") is not None:
                told["metrics"] = dict.fromkeys(told["metrics"], math.nan)
            return before[1](event, *args, **told)

        self._quiet, handler.call_event = True, call
        try:
            yield
        finally:
            self._quiet, handler.call_event = before

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log what is public; the figures of `evaluate`, and what a loss logs of a record, are not."""
        if not self._quiet:
            super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights as `Trainer` does; refused after a step that failed or that the ledger lacks."""
        if self.private is not None and self.private.taken:
            self.private.require_released()
        super().save_model(output_dir, _internal_call)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a search looks at private figures, and spends a budget in every trial."""
        raise PrivacyError(
            "hyperparameter_search chooses by exact figures, which no label covers: search on public data."
        )

    @property
    def _begun(self) -> PrivateTraining:
        if self.private is None:
            raise PrivacyError("No step was taken yet: call train() first.")
        return self.private

    def _begin(self, *, resume: bool) -> PrivateTraining:
        self.create_optimizer_and_scheduler(self.plan.steps)
        if "metrics" in inspect.signature(self.lr_scheduler.step).parameters:
            raise PrivacyError("The scheduler looks at exact figures; use another one.")
        self._to_train_mode()
        self._warn_of_padding()
        seen, records = as_loss(self.model, self._loss), self._records(self.get_train_dataloader())
        held = None if self._follow.holdout is None else self._records(self.get_eval_dataloader(self._follow.holdout))
        attached = {"optimizer": self.optimizer, "scheduler": self.lr_scheduler, "chunk": self._chunk}
        attached["whose"] = self._whose
        if not resume:
            follow = replace(self._follow, holdout=held)
            return PrivateTraining(seen, None, records, plan=self.plan, follow=follow, books=self._books, **attached)
        if self._books.run_dir is None:
            raise ValueError("resume_from_checkpoint=True needs run_dir=…, where the run is kept.")
        private = PrivateTraining.resume(self._books.run_dir, seen, None, records, holdout=held, **attached)
        if private.plan.frozen() != self.plan.frozen():
            raise PrivacyError("The run was started with another plan; resume it with the arguments of its start.")
        return private

    def _to_train_mode(self) -> None:
        self.model.train()
        if callable(getattr(self.optimizer, "train", None)):  # those without a schedule have modes, too
            self.optimizer.train()

    def _loss(self, model: Any, batch: Any) -> Tensor:
        with self.accelerator.autocast(), self._silent():
            loss: Tensor = self.compute_loss(model, dict(batch))
        return loss

    def _records(self, loader: Any) -> Records:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the batches are replaced is what this class is for
            return Records(
                loader, dtype=next((p.dtype for p in self.model.parameters() if p.is_floating_point()), None)
            )

    def _tell(self, event: str, **more: Any) -> None:
        """Tell the callbacks."""
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        self.control = getattr(handler, event)(self.args, self.state, self.control, **more)

    def _after(self, step: Step) -> None:
        """Count a step, and log and save where it is due."""
        epoch = steps_in_epoch(self.plan.sample_rate)
        self.state.global_step, self.state.epoch = step.number, step.number / epoch
        self._tell("on_step_end")
        self._log_and_save(step)
        if step.number % epoch == 0 or step.number == self.plan.steps:
            self._tell("on_epoch_end")
            self._log_and_save(step)
            if step.number < self.plan.steps:
                self._tell("on_epoch_begin")

    def _log_and_save(self, step: Step) -> None:
        if self.control.should_log:
            rate = float(self.lr_scheduler.get_last_lr()[0])
            self.log({**_spent(step), "learning_rate": rate})
        if self.control.should_save:
            self._save_checkpoint(self.model, None)
            self._tell("on_save")

    def _warn_of_padding(self) -> None:
        """Say that records are padded alone, by what the collator is; the records themselves decide nothing."""
        pads, multiple = getattr(self.data_collator, "padding", True), "pad_to_multiple_of"
        if getattr(self.data_collator, multiple, 0) is None and pads in (True, "longest"):
            warnings.warn(
                f"{type(self.data_collator).__name__} pads to the longest of a batch, and here each record is a batch "
                "of its own: records that are not as long as most contribute nothing. Give it pad_to_multiple_of=…, as "
                "large as the longest record may be, unless the dataset is padded already (padding='max_length').",
                stacklevel=4,
            )

    def _require_apart(self) -> None:
        run, published = self._books.run_dir, Path(self.args.output_dir).resolve()
        if run is not None and Path(run).resolve().is_relative_to(published):
            raise PrivacyError(
                f"run_dir={str(run)!r} lies in output_dir, which is what gets published; the run directory holds what "
                "was computed from records. Put it elsewhere."
            )
        if run is not None and published.is_relative_to(Path(run).resolve()):
            raise PrivacyError(f"output_dir lies in run_dir={str(run)!r}, which the run has to itself: move it.")


_THEIRS = frozenset(inspect.signature(Trainer.__init__).parameters) - {"self", "model", "args"}


def _refuse(args: Any, callbacks: Any) -> None:
    """Refuse arguments and callbacks that do not go with private steps."""
    for table, error in ((_UNFIT, ValueError), (_LOOKING, PrivacyError)):
        for name, (allowed, why) in table.items():
            value = _plain(args, name)
            if value is not None and value not in allowed:
                raise error(f"{name}={value!r} {why}")
    scheduler, optimizer = _plain(args, "lr_scheduler_type"), str(_plain(args, "optim"))
    if scheduler in _PLATEAU:
        raise PrivacyError(f"lr_scheduler_type={scheduler!r} looks at exact figures; use another one.")
    if "lomo" in optimizer or "layerwise" in optimizer:
        raise ValueError(f"optim={optimizer!r} steps within backward(), which is never called; use another one.")
    for callback in callbacks:
        kind = callback if isinstance(callback, type) else type(callback)
        if issubclass(kind, EarlyStoppingCallback):
            raise PrivacyError(f"{kind.__name__} {_LOOKS}; stop by released parameters, or declare stops=….")
        for event in _UNCALLED_EVENTS:
            if getattr(kind, event) is not getattr(TrainerCallback, event):
                raise ValueError(f"{kind.__name__}.{event} is never called; use on_step_begin or on_step_end.")


def _plain(args: Any, name: str) -> Any:
    """Return an argument, of an enumeration its value; None if this version of transformers has none of the name."""
    value = getattr(args, name, None)
    return getattr(value, "value", value)


def _spent(step: Step) -> dict[str, float]:
    """Return what the label says if the run ends here, rounded up as there."""
    return {"epsilon": float(round_up_text(step.spent.epsilon)), "delta": step.spent.delta}


def _declared(args: Any, settings: dict[str, Any]) -> Plan:
    """Return the plan that the Trainer's arguments and further settings declare."""
    for name, theirs in (("batch_size", "per_device_train_batch_size"), ("steps", "max_steps")):
        if name in settings:
            raise TypeError(f"{name} is that of the TrainingArguments: set {theirs} there.")
    batch, steps = args.train_batch_size * args.world_size, args.max_steps
    if steps <= 0:
        _, rate = declared_rate(settings.get("sample_rate"), batch, settings.get("nominal_size"))
        steps = math.ceil(args.num_train_epochs * steps_in_epoch(rate))
    settings.setdefault("clip_norm", args.max_grad_norm)
    return Plan.declare(steps=steps, batch_size=batch, **settings)
