"""Records in, per-record losses out: how datasets and models of all shapes reach the private step."""

from __future__ import annotations

import copy
import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import keystr, tree_leaves, tree_map, tree_map_with_path
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from tacita._check import PrivacyError
from tacita._guard import attempt
from tacita.training.arrays import as_tensor
from tacita.training.gradients import Loss, Parameters, tried
from tacita.training.memory import changed, contents
from tacita.training.randomness import fresh_draws
from tacita.training.reading import Collated, Marked, Reader, places, readable
from tacita.training.ways import changing, made_up

TARGETS = ("labels", "label", "targets", "target", "y")


class Records:
    """A dataset that can be indexed by many positions at once.

    Takes a tensor dataset, a tuple or dict of tensors, arrays, or columns and tables of pandas (records along the first
    dimension), or any map-style dataset of tuples or dicts, as of `datasets`, also within a DataLoader. Tensors are
    kept as they are, and of arrays tensors are made; see `tacita.training.arrays`. The records of other datasets are
    read one by one. One that cannot be read, or does not look like the others, is broken and contributes nothing.

    Args:
        dataset: The records.
        device: Where batches go.
        like: For a map-style dataset: a made-up record that looks like all others, such as (torch.zeros(3, 32, 32), 0).
            By default most of 15 records say it; see `tacita.training.reading`.
        empty: Whether there may be no record at all, as in a federation's client.
        dtype: What reals become that are not tensors; torch's default type unless given.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | str = "cpu",
        *,
        like: Any = None,
        empty: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._device = device
        self._tensors: Any = None
        if isinstance(dataset, DataLoader):
            dataset = unbatched(dataset, dtype)
        self._reader = Reader(dataset, like, dtype)
        if isinstance(dataset, TensorDataset):
            self._tensors = dataset.tensors
        elif isinstance(dataset, Tensor | np.ndarray | tuple | Mapping):
            self._tensors = _tensors(dataset, dtype)
        elif not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"dataset must be a map-style dataset or tensors, got {type(dataset).__name__}; records are sampled "
                "by their position, so a stream will not do."
            )
        elif hasattr(dataset, "iloc"):
            raise TypeError(
                "dataset is a table: say what is predicted, by (frame.drop(columns='y'), frame['y']), or pass a dict "
                "of columns if the model takes them by name."
            )
        if self._tensors is None:
            self._size = len(dataset)
        else:
            lengths = {len(t) if t.dim() else -1 for t in tree_leaves(self._tensors)}
            if len(lengths) != 1 or -1 in lengths:
                raise ValueError("dataset's tensors must have one length: a record is a row of each.")
            self._size = lengths.pop()
        if self._size == 0 and not empty:
            raise ValueError("dataset must hold at least one record.")

    @classmethod
    def of(cls, dataset: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Records:
        """Return a dataset's records, or records as they are, with batches on a device.

        Args:
            dataset: The records.
            device: Where batches go.
            dtype: What reals become that are not tensors.
        """
        if not isinstance(dataset, Records):
            return cls(dataset, device, dtype=dtype)
        moved = copy.copy(dataset)
        moved._device = device
        return moved

    def __len__(self) -> int:
        return self._size

    @property
    def form_taken(self) -> bool:
        """Whether what a record looks like was taken from the dataset instead of being declared, or being tensors."""
        return self._tensors is None and not self._reader.declared

    @property
    def listed(self) -> bool:
        """Whether a record is a tuple of parts, and not a dict or a single tensor."""
        return isinstance(self._reader.sample if self._tensors is None else self._tensors, tuple | list)

    @property
    def tensors(self) -> tuple[Tensor, ...] | None:
        """The records as a tuple of tensors (inputs …, target), or None if they are not kept so."""
        kept = self._tensors
        return tuple(kept) if isinstance(kept, tuple | list) and len(kept) > 1 else None

    def fingerprint(self) -> str:
        """Return a hash of the records, or marks of some of them where they are read one by one. For the owner."""
        if self._tensors is None:
            return self._reader.fingerprint()
        mark = hashlib.sha256(str(self._size).encode())
        for leaf in tree_leaves(self._tensors):
            mark.update(leaf.detach().cpu().contiguous().view(torch.uint8).numpy() if leaf.dim() else b"")
        return mark.hexdigest()

    def matches(self, fingerprint: str) -> bool:
        """Return whether these are the records of a fingerprint."""
        return self._reader.matches(fingerprint) if self._tensors is None else self.fingerprint() == fingerprint

    def take(self, indices: Any) -> Any:
        """Return the records at `indices` that are not broken, batched; None if there are none."""
        return readable(self.marked(indices))

    def marked(self, indices: Any, *, rng: np.random.Generator | None = None) -> Any:
        """Return the records at `indices`, batched, and marked where one may be broken; None for no indices.

        Args:
            indices: Which.
            rng: Where the seed of what a map-style dataset draws comes from; the operating system if None.
        """
        if len(indices) == 0:
            return None
        if self._tensors is not None:
            chosen = torch.as_tensor(np.asarray(indices))
            batch = tree_map(lambda t: t[chosen], self._tensors)  # a copy, never a view
        else:
            batch = self._reader.take(indices, rng=rng)
        return tree_map(lambda t: t.to(self._device), batch)


def unbatched(loader: DataLoader[Any], dtype: torch.dtype | None = None) -> Any:
    """Return the records of a DataLoader; its collate function is applied to each of them alone.

    Args:
        loader: Its batches are replaced, which a warning says.
        dtype: What reals become that are not tensors.

    Raises:
        TypeError: If it iterates over a stream, or if its sampler leaves records out or weighs them.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            "The DataLoader reads a stream; records are sampled by their position: use a map-style dataset."
        )
    batches: Any = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):  # within those of accelerate
        batches = batches.batch_sampler
    sampler = batches.sampler if type(batches) is BatchSampler else loader.sampler if batches is None else batches
    if not isinstance(sampler, SequentialSampler | RandomSampler | DistributedSampler):
        raise TypeError(
            f"The DataLoader's {type(sampler).__name__} may choose or weigh records, and private training samples by "
            "itself: pass DataLoader(torch.utils.data.Subset(dataset, indices)), or the dataset."
        )
    warnings.warn(
        "The DataLoader's batches are replaced: every record enters a step by its own coin, with chance batch_size / "
        "nominal_size, and is collated alone. Pass loader.dataset to say that this is known.",
        stacklevel=4,
    )
    if loader.collate_fn in (default_collate, default_convert):  # it stacks tensors, as reading does
        return loader.dataset
    return Collated(loader.dataset, loader.collate_fn, dtype)


def _tensors(columns: Any, dtype: torch.dtype | None) -> Any:
    """Return tensors of tuples and dicts of tensors, arrays, lists and tables."""
    columns = dict(columns) if isinstance(columns, Mapping) else columns
    if isinstance(columns, dict) and any(hasattr(part, "column_names") for part in columns.values()):
        raise TypeError(f"dataset holds several datasets, {', '.join(map(str, columns))}: pass one of them.")
    return tree_map_with_path(
        lambda path, part: as_tensor(part, dtype, f"dataset{keystr(path)}"),
        columns,
        is_leaf=lambda part: isinstance(part, list),
    )


def record_loss(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor] | None) -> Loss:
    """Return the loss of one record as a function of the parameters.

    Args:
        model: The module.
        loss_fn: As in PyTorch: `loss_fn(model(inputs), target)` on a batch of one. A record (x, y) is fed as model(x),
            (x1, x2, y) as model(x1, x2), and a dict by its names, all but its target (the first of labels, label,
            targets, target, y). The loss may reduce by mean or sum, or not at all. None if the model computes the loss
            itself; the record is then passed whole, labels and all. What it returns is the loss, or holds it: as its
            `loss`, as its entry of that name, or as the first of several.

    Returns:
        A function of parameters and one record. The loss of a broken record is NaN, and its gradient is zero.
    """

    def loss(parameters: Parameters, record: Any) -> Tensor:
        if isinstance(record, Marked):
            return torch.where(record.readable, loss(parameters, record.record), torch.nan)
        batch = tree_map(lambda t: t.unsqueeze(0), record)
        if loss_fn is None:
            whole = (
                ((), batch)
                if isinstance(batch, Mapping)
                else (batch if isinstance(batch, tuple | list) else (batch,), {})
            )
            return _own_loss(functional_call(model, parameters, *whole)).sum()
        args, kwargs, target = split_batch(batch)
        return loss_fn(functional_call(model, parameters, args, kwargs), target).sum()

    loss.model = model  # type: ignore[attr-defined]  # so that changes of its buffers are noticed
    return loss


def _own_loss(out: Any) -> Tensor:
    """Return the loss in what a model returns."""
    if not isinstance(out, Tensor):
        if hasattr(out, "loss"):
            out = out.loss
        elif isinstance(out, Mapping):
            out = out.get("loss")
        elif isinstance(out, tuple | list) and out:
            out = out[0]
    if not isinstance(out, Tensor):
        raise TypeError(
            f"With loss_fn=None the model must return its loss, or something with a `loss`, got {type(out).__name__}. "
            "A Hugging Face model computes one if the record is a dict with its labels under `labels`."
        )
    return out


def split_batch(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return a batch as the model's arguments, by place and by name, and the target."""
    if isinstance(batch, Mapping):
        name = next((t for t in TARGETS if t in batch), None)
        if name is None:
            raise ValueError(f"A dict record needs its target under one of {TARGETS}, got keys {sorted(batch)}.")
        return (), {k: v for k, v in batch.items() if k != name}, batch[name]
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise ValueError("A record must be a tuple (inputs, target) or a dict.")
    return tuple(batch[:-1]), {}, batch[-1]


def trainable(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the parameters that the optimiser moves, by name; each must belong to the model."""
    named = {id(p): name for name, p in model.named_parameters()}
    moved = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(id(p) not in named for p in moved):
        raise ValueError(
            "optimizer holds parameters that are not the model's: build it from model.parameters() after the model "
            "is complete."
        )
    if not moved:
        raise ValueError("optimizer has no parameter that requires a gradient: everything is frozen.")
    if any(p.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16) for p in moved):
        raise ValueError("Parameters must be real floating point.")
    return {named[id(p)]: p for p in moved}


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix records or remember them, by name and with a way out."""
    for name, layer in model.named_modules():
        where = f"{type(layer).__name__} at {name or 'the top'!r}"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not layer.track_running_stats):
            raise PrivacyError(
                f"{where} mixes records within a batch, so clipping records does not bound it. Use "
                f"nn.GroupNorm({np.gcd(32, layer.num_features)}, {layer.num_features}) in its place, or call .eval() "
                "on it to keep its statistics fixed."
            )
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats and layer.training:
            raise PrivacyError(f"{where} keeps running statistics of records. Set track_running_stats=False.")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in layer.parameters(recurse=False)):
            raise ValueError(f"{where} has no shape yet. Run the model once on a record before training.")
        if any(p.device.type == "mps" for p in layer.parameters(recurse=False)):
            raise ValueError(f"{where} is on MPS, which has no float64, and norms need it. Move the model to the CPU.")
        hooks = (layer, *layer._forward_pre_hooks.values())  # torch has a module and a hook for it
        if any(type(part).__name__ in ("_SpectralNorm", "SpectralNorm") for part in hooks):
            raise PrivacyError(
                f"{where} has a spectral norm, which changes buffers as it runs. Remove it, or divide the weight by "
                "its norm in the model."
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise PrivacyError(
                f"{where} has a max_norm: torch rescales the rows that a record looks up, without noise. Set "
                "max_norm=None, and divide by the norm in the model if rows must be short."
            )


def try_one(model: nn.Module, loss: Loss, parameters: Parameters, records: Any) -> None:
    """Run a record through, so that what cannot work fails before anything is charged.

    The record is of zeros: what real ones hold decides nothing, unless the model does not run on zeros. Then it must
    run on one of a few. Messages give shapes, types and what was raised on zeros, so nothing of any record.

    Args:
        model: Whose parameters and buffers must not change.
        loss: Takes the parameters and one record.
        parameters: What it is differentiated by.
        records: The dataset.
    """
    before = _contents(model)
    few = records.marked(places(len(records)))
    form = few.record if isinstance(few, Marked) else few
    described = tree_map(lambda t: f"{tuple(t.shape[1:])} {str(t.dtype).removeprefix('torch.')}", form)
    _require_forgetful(loss, parameters, form)
    try:
        tried(loss, parameters, few)
    except PrivacyError:
        raise
    except Exception as error:
        raise ValueError(
            f"The model and the loss run on no record of {described}. Zeros, ones and a few records of the dataset "
            "were tried, together and alone, as a batch of one; nothing was charged. On zeros: "
            f"{type(error).__name__}: {error}"
        ) from None
    now = _contents(model)
    name = next((name for name in {**before, **now} if before.get(name) != now.get(name)), None)
    if name is not None:
        raise changing(name, buffer=name in dict(model.named_buffers()))


def _contents(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return what marks each parameter and buffer, and its contents."""
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    return {name: (id(t), contents(t)) for name, t in tensors.items()}


def _require_forgetful(loss: Loss, parameters: Parameters, records: Any) -> None:
    """Refuse a model or a loss that keeps something from call to call, as far as made-up records show it.

    They are of zeros, of ones and of noise; if the loss runs on none of them, a few of the dataset take their place.
    """
    one = tree_map(lambda t: torch.zeros_like(t[:1]), records)
    noise = [tree_map(lambda t, row=row: t[row], made_up(one, varied=row > 0)) for row in range(3)]
    shown = [tree_map(lambda t: t[0], one), tree_map(lambda t: torch.ones_like(t[0]), one), *noise]
    refusals: list[PrivacyError] = []
    with torch.enable_grad(), fresh_draws():
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}

        def run(record: Any) -> bool:
            try:
                value = loss(leaves, tree_map(torch.clone, record))
            except PrivacyError as error:
                refusals.append(error)
                raise
            if value.requires_grad:  # hooks keep, too
                torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            return True

        while shown and not attempt(run, shown[0]):  # what is made at the first call and kept is no memory
            shown.pop(0)
        if not shown:
            shown = [tree_map(lambda t, row=row: t[row], records) for row in range(len(tree_leaves(records)[0]))]
        found = changed((functools.partial(attempt, run, record) for record in shown), loss)
    if refusals:
        raise refusals[0]
    if found:
        raise PrivacyError(
            f"{found!r} changes whenever the model or the loss runs, so it would carry one record to the others. Make "
            "them functions of their inputs and parameters alone."
        )
