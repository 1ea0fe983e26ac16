"""Measured runs beside the points of scaling curves.

The published runs are part of the package: `measured_runs`.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from importlib import resources
from math import nan
from pathlib import Path

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.text_files import path_of
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.runfile import SimulationRun
from tpusim.sweeps.scaling import Scaling
from tpusim.validation.measured_runs import MeasuredRun, measured_runs

_CHECKOUT = Path(__file__).parents[2] / "tests" / "measured" / "runs"


@checked_call
def with_measured(found: Scaling, runs: Path | str | None = None) -> Scaling:
    """Return the curves with the columns `measured_step_time_s`, `measured_mfu`, `measured_run`.

    A measured run belongs to a point if model, slices, mesh, batch, sequence length, dtype of the
    matmuls and checkpoints are the same; its MFU counts FLOPs as the simulation does. Points
    without one have NaN and an empty text.

    runs: a folder of run files with a section [measured], or a CSV file (docs/validation.md); by
        default the published runs.

    Raise FileError if it is none of these.
    """
    if not isinstance(found, Scaling):
        raise PlanError(f"with_measured is given {shown(found)}; write a result of ts.scaling")
    known = _runs(shipped_runs() if runs is None else path_of(runs, "with_measured"))
    alike = {
        _key(run.given.plan, run.given.pod): run
        for run in reversed(known)
        if run.given is not None and _same_kind(run.given, found)
    }
    measured = [alike.get(_key(point.plan, point.pod)) for point in found.points]
    steps = [run.step_s if run else nan for run in measured]
    table = found.table.assign(
        measured_step_time_s=steps,
        measured_mfu=found.table["mfu"] * found.table["step_time_s"] / steps,
        measured_run=[run.id if run else "" for run in measured],
    )
    return replace(found, table=table)


def shipped_runs() -> Path:
    """Return the folder of the published runs: in the installed package, or in a checkout."""
    inside = Path(str(resources.files("tpusim"))) / "measured_runs"
    return inside if inside.is_dir() else _CHECKOUT


@cache
def _runs(path: Path) -> tuple[MeasuredRun, ...]:
    return measured_runs(path)


def _same_kind(run: SimulationRun, found: Scaling) -> bool:
    """Return True for a run of the same model with the same dtype and checkpoints."""
    ours, theirs = found.plan, run.plan
    return (
        isinstance(found.model, Transformer)
        and isinstance(run.model, Transformer)
        and run.model.replace(name=found.model.name) == found.model
        and theirs.seq_len == ours.seq_len
        and theirs.dtypes.matmul == ours.dtypes.matmul
        and (theirs.remat.policy, theirs.remat.save) == (ours.remat.policy, ours.remat.save)
    )


def _key(plan: Plan, pod: Slice) -> Hashable:
    """Return what distinguishes the points of a plan: chips, slices, mesh and batch."""
    mesh = frozenset(plan.active_axes.items())
    return pod.chip.name, pod.topology, pod.num_slices, mesh, plan.global_batch
