"""The simulation of a measured system, and its outcome."""

import re
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import PlanError, TpusimError
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.results import PlanResult
from tpusim.simulation import simulate
from tpusim.validation.remark_rules import DTYPE_SPELLINGS
from tpusim.validation.systems.measured_rate import MeasuredRate, measured_of
from tpusim.validation.systems.system_mesh import mesh_of_row, slice_of_row
from tpusim.validation.systems.system_models import SystemModel, model_of_row
from tpusim.validation.systems.system_rows import SystemRow

NOT_TRAINING = (
    (r"inference|\bdecode\b|prefill|serving", "inference, which is not a training step"),
    (r"allgather|alltoall|collective", "a collective, not a training step"),
    (r"\bbf16\[", "a single operation, not a training step"),
)
REMATS = ("dots", "minimal", "full")
"""Policies that are tried where a row gives none and nothing fits, lightest first."""

OPTIMIZERS = ("adafactor", "muon", "adam", "lamb", "lars", "momentum", "sgd")
"""Optimizers that a row may name; of two that it names, the first: "SGD with momentum" has one."""

REPLICAS = ("data",)
"""Axes of copies of the weights within a slice, over which their updates are divided."""


@dataclass(frozen=True, slots=True)
class SystemOutcome:
    """A row with its prediction.

    status: `simulated`, `failed`, or `no training step` for what is not one, or gives no rate.
    reason: why it was not simulated, or what was assumed.
    """

    row: SystemRow
    status: str
    reason: str = ""
    measured: MeasuredRate | None = None
    result: PlanResult | None = None

    @property
    def measured_s(self) -> float | None:
        """The measured step, or the step that the measured rate means for the plan."""
        if self.measured is None or self.result is None:
            return None
        return self.measured.seconds_of(self.result)

    @property
    def error(self) -> float | None:
        """Predicted over measured time of a step, less one."""
        if self.result is None or not self.measured_s:
            return None
        return self.result.step_time_s / self.measured_s - 1


def run_system(row: SystemRow) -> SystemOutcome:
    """Return the outcome of a row; what cannot run is an outcome with its reason."""
    for pattern, why in NOT_TRAINING:
        if re.search(pattern, f"{row.system} {row.sharding} {row.cells.get('util_kind', '')}"):
            return SystemOutcome(row, "no training step", why)
    try:
        measured = measured_of(row)
        if measured is None:
            return SystemOutcome(row, "no training step", "no step time, rate or utilisation")
        known = model_of_row(row)
        plan, pod, notes = plan_of_row(row, known)
        result, own_notes = _lightest(known, plan, pod, given=_is_given(row.remat))
    except TpusimError as error:
        return SystemOutcome(row, "failed", str(error))
    return SystemOutcome(row, "simulated", "; ".join((*notes, *own_notes)), measured, result)


def _lightest(
    known: SystemModel, plan: Plan, pod: Slice, given: bool
) -> tuple[PlanResult, tuple[str, ...]]:
    """Return the result of a plan, with the lightest remat that fits where none is given."""
    result = simulate(known.model, plan, pod)
    chosen = not given and "remat" not in known.keys and known.model.has_layers
    tried = REMATS if chosen else ()
    for policy in tried:
        if result.fits:
            break
        plan = plan.replace(remat=policy)
        result = simulate(known.model, plan, pod)
    notes = [] if result.fits else ["does not fit in HBM"]
    if chosen:
        notes.append(f"remat is not given, and taken as {plan.remat.policy}")
    return result, tuple(notes)


def plan_of_row(row: SystemRow, known: SystemModel) -> tuple[Plan, Slice, tuple[str, ...]]:
    """Return the plan and the slice of a row, and notes on what was assumed."""
    pod, slice_notes = slice_of_row(row)
    seq_len = row.sizes.get("seq_len", known.seq_len) if known.model.reads_text else 0
    batch = row.batch or row.tokens // max(_tokens(known, seq_len), 1) or known.batch
    notes = [*known.notes, *slice_notes]
    if not batch:
        batch = known.batch or 8 * pod.devices
        notes.append(f"the batch is taken as {batch}, as only a rate is given")
    model = known.model
    mesh = mesh_of_row(row, pod, batch, model.expert_count, model.parameter_count)
    notes += mesh.notes
    keys: dict[str, Any] = {"remat": _remat(row), "optimizer": "adam"}
    keys |= dict(known.keys)
    keys |= _optimizer(row)
    keys |= _dtypes(row)
    if re.search(r"weight[- ]update sharding|\bwus\b", row.words):
        keys["weight_update_axes"] = [axis for axis in REPLICAS if axis in mesh.mesh]
    keys["rules"] = {**known.keys.get("rules", {}), **mesh.keys.get("rules", {})}
    keys |= {key: value for key, value in mesh.keys.items() if key != "rules"}
    if stages := mesh.mesh.get("stage"):
        layers = {"stage_layers": _stage_layers(model.layer_count, stages)}
        keys |= {"microbatches": stages, **known.staged} if known.staged else layers
    if parts := row.sizes.get("microbatches", _microbatches(row, batch)):
        keys["microbatches"] = parts
    plan = Plan(mesh=mesh.mesh, seq_len=seq_len, global_batch=batch, **keys)
    return plan, pod, tuple(notes)


def _is_given(words: str) -> bool:
    return bool(words) and not words.startswith("not stated")


def _tokens(known: SystemModel, seq_len: int) -> int:
    """Return the tokens of an example, over all its sequences; 0 of a model that reads no text."""
    return known.model.graph(batch=1, seq_len=seq_len).tokens if known.model.reads_text else 0


def _stage_layers(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage; those at the ends have less if that makes the rest equal.

    >>> _stage_layers(62, 4), _stage_layers(10, 4)
    ([15, 16, 16, 15], [3, 3, 2, 2])
    """
    each, left = divmod(layers, stages)
    if (layers + 2) % stages == 0 and stages > 2:
        inner = (layers + 2) // stages
        return [inner - 1, *[inner] * (stages - 2), inner - 1]
    return [each + (stage < left) for stage in range(stages)]


def _remat(row: SystemRow) -> str:
    """Return the remat policy: none where a row says so, or says nothing of a small model."""
    return "full" if re.search(r"full|recompute|compiler-chosen|one sharded", row.remat) else "none"


def _optimizer(row: SystemRow) -> dict[str, str]:
    """Return the optimizer, where the row names one; the recipe of its model has one otherwise."""
    words = f"{row.optimizer} {row.words}"
    found = next((name for name in OPTIMIZERS if re.search(rf"\b{name}", words)), "")
    return {"optimizer": found} if found else {}


def _dtypes(row: SystemRow) -> dict[str, str]:
    """Return the dtype of activations and weights in use, where the row names one."""
    found = re.search("|".join(DTYPE_SPELLINGS), row.dtype)
    return {"dtype": DTYPE_SPELLINGS[found[0]]} if found else {}


def _microbatches(row: SystemRow, batch: int) -> int:
    found = re.search(r"([1-9]\d*) micro-?batches", row.words)
    if found and batch % int(found[1]):
        raise PlanError(f"{found[0]} do not divide a batch of {batch}")
    return int(found[1]) if found else 0
