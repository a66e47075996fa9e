"""Per-record gradients of one model, by an ordinary loop, by Tacita and by Opacus."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleExpandedWeights, GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from experiments.models.cases import RECORDS, Case
from tacita import PrivacyError
from tacita.training import clipped_sum
from tacita.training.chunks import differentiated
from tacita.training.records import Records, check_model, record_loss, try_one
from tacita.training.ways import tried

UNCLIPPED = 1e12
Verdict = dict[str, Any]


def by_loop(case: Case) -> Tensor | None:
    """Return each record's gradient by an ordinary backward pass for it alone, or None if the model takes no such."""
    rows, moved = [], case.moved()
    for number in range(RECORDS):
        case.model.zero_grad()
        try:
            case.loss(case.model, case.record(number)).backward()
        except ValueError:
            return None
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in moved.values()]
        rows.append(torch.cat([g.flatten() for g in gradients]))
    case.model.zero_grad()
    return torch.stack(rows).double()


def difference(found: Tensor, wanted: Tensor) -> float:
    """Return how far the worst record's gradient is, relative to its largest coordinate."""
    most = (found - wanted).abs().amax(1) / wanted.abs().amax(1)
    return float(most.max()) if bool(most.isfinite().all()) else float("inf")


def ours(case: Case, wanted: Tensor | None) -> Verdict:
    """Return which way Tacita runs a model, and how far its gradients, their norms and their clipped sum are.

    Args:
        case: The model.
        wanted: Each record's gradient.

    Returns:
        `way`; `why`, if it is refused, warned of, or run record by record; else `layers`, the share of coordinates
        whose gradients follow from what layers are given; and `apart` unless it is refused or warned of.
    """
    loss, records = record_loss(case.model, case.loss_fn), case.records
    parameters = {name: p.detach() for name, p in case.moved().items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_model(case.model)
            try_one(case.model, loss, parameters, Records(records))
        except PrivacyError as error:
            return {"way": "refused", "why": str(error)}
        way, _ = tried(loss, parameters, records)
        said = [str(warning.message) for warning in caught]
        if zero := next((words for words in said if "exactly zero" in words), None):
            return {"way": "warned", "why": zero}
        if not way.alone:
            differentiated(loss, parameters, records, way)  # fails if not all can run at once
        apart = _apart(loss, parameters, records, wanted)
    if way.alone:
        why = next(words for words in said if "one after the other" in words)
        return {"way": "record by record", "why": why.split("cannot do here ")[1], "apart": apart}
    tapped = sum(parameters[name].numel() for name in way.tapped) / sum(p.numel() for p in parameters.values())
    return {"way": "together", "layers": round(tapped, 3), "apart": apart}


def _apart(loss: Any, parameters: Any, records: Any, wanted: Tensor) -> float:
    """Return the largest relative difference of gradients, of a clipped sum, and of what records contribute to it."""
    rows = []
    for number in range(RECORDS):
        only = torch.zeros(RECORDS, dtype=torch.float64)
        only[number] = UNCLIPPED
        rows.append(_flat(clipped_sum(loss, parameters, records, only).sums))
    norms = wanted.norm(dim=1)
    bounds = norms.median().expand(RECORDS).clone()
    clipped = clipped_sum(loss, parameters, records, bounds)
    summed = ((bounds / norms).clamp_max(1.0)[:, None] * wanted).sum(0, keepdim=True)
    contributed = float(((clipped.norms - norms.minimum(bounds)) / norms).abs().max())
    return max(difference(torch.stack(rows), wanted), difference(_flat(clipped.sums)[None], summed), contributed)


def _flat(sums: dict[str, Tensor]) -> Tensor:
    return torch.cat([total.flatten() for total in sums.values()]).double()


def _backward(case: Case, wrap: Callable[[nn.Module], Any]) -> dict[str, nn.Parameter]:
    """Return the parameters of a copy of the model within a class of Opacus, after a backward pass of the batch."""
    model = copy.deepcopy(case.model)
    case.loss(wrap(model), case.records).backward()
    return case.moved(model)


def _gathered(case: Case, wanted: Tensor, moved: dict[str, nn.Parameter], name: str) -> list[Tensor]:
    """Return what Opacus left at each parameter, one entry a record; zeros where no gradient is wanted."""
    found = []
    shares = wanted.split([p.numel() for p in moved.values()], 1)
    for (where, p), share in zip(moved.items(), shares, strict=True):
        left = getattr(p, name, None)
        if left is None:
            if bool(share.any()):
                raise LookupError(f"no {name.strip('_')} of {where}")
            left = torch.zeros(RECORDS, 1).expand(RECORDS, p.numel() if name == "grad_sample" else 1)
        if len(left) != RECORDS:
            raise LookupError(f"{len(left)} instead of {RECORDS} in {name.strip('_')} of {where}")
        found.append(left.reshape(RECORDS, -1).double())
    return found


def hooks(case: Case, wanted: Tensor) -> float:
    """Return how far Opacus's gradients by hooks are."""
    return difference(torch.cat(_gathered(case, wanted, _backward(case, GradSampleModule), "grad_sample"), 1), wanted)


def expanded(case: Case, wanted: Tensor) -> float:
    """Return how far Opacus's gradients by expanded weights are."""
    moved = _backward(case, GradSampleModuleExpandedWeights)
    return difference(torch.cat(_gathered(case, wanted, moved, "grad_sample"), 1), wanted)


def ghost(case: Case, wanted: Tensor) -> float:
    """Return how far the norms are by which Opacus's ghost clipping clips."""
    moved = _backward(case, GradSampleModuleFastGradientClipping)
    norms = torch.cat(_gathered(case, wanted, moved, "_norm_sample"), 1).norm(dim=1)
    return float(((norms - wanted.norm(dim=1)) / wanted.norm(dim=1)).abs().max())


MODES: dict[str, Callable[[Case, Tensor], float]] = {"hooks": hooks, "ew": expanded, "ghost": ghost}


def theirs(case: Case, wanted: Tensor | None) -> dict[str, Verdict]:
    """Return what Opacus does in each of its modes; what it raises is an answer, too."""
    found: dict[str, Verdict] = {}
    for mode, run in MODES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[mode] = {"apart": run(case, wanted)}
            except Exception as error:
                found[mode] = {"error": f"{type(error).__name__}: {error}".strip()[:400]}
    return found
