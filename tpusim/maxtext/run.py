"""The run of a MaxText config: the entry point of this package."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import TpusimError, blame
from tpusim.base.shown_value import shown
from tpusim.hardware import Slice
from tpusim.maxtext.config import MaxTextConfig, Overrides, config_of, source, without_override
from tpusim.maxtext.key_table import LEFT_OUT
from tpusim.maxtext.mesh import slice_of
from tpusim.maxtext.model import model_of
from tpusim.maxtext.notes import check_refused, notes_of
from tpusim.maxtext.plan import plan_of
from tpusim.maxtext.shipped_tables import defaults
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.runfile import SimulationRun, changed_plan

SIZE = "_parallelism"
NOTED = tuple(LEFT_OUT)
"""Keys that have a note of their own where they have an effect."""

Taken: TypeAlias = tuple[Transformer, Plan, Slice]


@checked_call
def from_maxtext(
    config: str | Path | None,
    overrides: Overrides = (),
    *,
    pod: Slice | str | None = None,
    settings: Sequence[str] = (),
    verbose: bool = False,
) -> SimulationRun:
    """Return the run of a MaxText config: its model, plan and slice, and notes on differences.

    config: the path of a config, or None (or `defaults`) for MaxText's own.
    overrides: `key=value` texts as on MaxText's command line, or a table. They hold over what
        `model_name` stands for, that over the file, and the file over MaxText's defaults.
    pod: the slice, such as `v5e-256` or `v6e:4x8`, in place of `compile_topology`; or a `Slice`,
        with as many slices as it has.
    settings: changes of the plan beyond MaxText's keys, such as `plan.lowering=ideal`.
    verbose: the notes list all keys that are ignored.

    Raise a TpusimError of one sentence for a file that cannot be read, an override of a key that
    does not exist, wrong or contradicting values, and what cannot be simulated.
    """
    where, file = source(config)
    with blame(where):
        return _run(config_of(where, file, overrides), pod, settings, verbose)


def _run(
    config: MaxTextConfig, pod: Slice | str | None, settings: Sequence[str], verbose: bool
) -> SimulationRun:
    check_refused(config)
    model, plan, on = taken = _taken(config, pod)
    notes = (*notes_of(config, verbose=verbose), *_idle(config, pod, taken))
    run = SimulationRun(config.where, model, plan, on, notes)
    return replace(run, plan=changed_plan(plan, settings)) if settings else run


def _taken(config: MaxTextConfig, pod: Slice | str | None) -> Taken:
    on = slice_of(config, pod)
    model = model_of(config)
    return model, plan_of(config, model, on), on


def _idle(config: MaxTextConfig, pod: Slice | str | None, taken: Taken) -> Iterator[str]:
    """Yield a note on the overrides that are read but do not change the run.

    Sizes of mesh axes are left out: -1, which fills an axis in, is often the size that they give.
    """
    idle = []
    for key in config.over:
        if key not in defaults() or key in NOTED or key.endswith(SIZE):
            continue
        try:
            other = without_override(config, key)
            same = other.table[key] != config.table[key] and _taken(other, pod) == taken
        except TpusimError:
            continue
        if same:
            idle.append(f"{key} = {shown(config.table[key])}")
    if idle:
        yield f"changes nothing here: {', '.join(idle)}"
