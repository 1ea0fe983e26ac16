"""The sweep: all plans of a space simulated, as a frame."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.text_files import path_of
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input
from tpusim.simulation.arguments import check_input, check_model, check_slice, described
from tpusim.sweeps.chunks import (
    LEAST_CHUNK,
    Pace,
    SweepChunk,
    chunks_of,
    outline_of,
    timed_rows,
)
from tpusim.sweeps.dataset import SweepDataset, SweepIdentity, open_dataset
from tpusim.sweeps.frame import SweepColumns, sweep_columns, sweep_frame
from tpusim.sweeps.processes import MOST_SUBMITTED, check_workers, run_chunks, usable_cpus
from tpusim.sweeps.rows import SweepRow
from tpusim.sweeps.search_axes import SweepCandidate
from tpusim.sweeps.space import Space

if TYPE_CHECKING:
    from pandas import DataFrame

AHEAD = 2
"""Chunks for each process of this machine that are made before they are due."""

PART_S = 1.0
"""Seconds after which finished rows are written; a sweep that is killed loses no more."""


@checked_call
def sweep(
    model: Architecture | str,
    space: Space,
    pod: Slice | str,
    *,
    input: Input | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    out: Path | str | None = None,
) -> "DataFrame":
    """Return a row for each plan of `space`, in the order of `candidates(space, pod)`.

    The columns are the sizes of the mesh axes, the varied fields of the plan, those of
    `space.extra_axes`, `topology` if the space has shapes, `placement` as text, `step_time_s, mfu,
    hfu, tokens_per_s, hbm_peak_bytes, hbm_bytes, fits, exposed_s, fit` as in `Result`, `fit_odds`,
    which is the fraction of compared plans like it that fit (`hbm_odds`), `step_time_low_s,
    step_time_high_s, mfu_low, mfu_high`, which are the ends of its ranges, the labels of its
    `breakdown_s`, `status` and `reason`. A plan that does not fit has its numbers and
    a reason (`does not fit`), one that the model or the slice does not admit a reason only
    (`refused`, numbers NaN); none is missing.

    model: an architecture, or the name of a published one.
    pod: a slice, or its name, such as `v5e-256`.
    input: the hosts' input pipeline, beside which each plan is simulated; None for batches that are
        there when a step begins.
    workers: processes; by default one per CPU, or this process alone for little work.
    executor: runs the chunks instead, for example that of a cluster (`ts.cluster`).
    progress: called with the plans done and the total as chunks finish.
    out: a folder for a Parquet dataset, to which finished rows are written each second. A later
        run of the same sweep reads what is there and runs the rest.

    Neither workers nor executor changes the frame. Raise TpusimError for a space that has no plan
    on `pod`, and for a folder that cannot be written or holds anything else.
    """
    order = "write sweep(model, space, slice)"
    model = check_model(model, order, "sweep")
    if not isinstance(space, Space):
        raise PlanError(f"the space is {described(space)}; {order}, with a space of ts.Space(...)")
    pod = check_slice(pod, order)
    check_input(input, space.base.input_s)
    check_workers(workers, executor, progress)
    identity = SweepIdentity(model, pod, input)
    outline = outline_of(space, pod, identity.add)
    columns = sweep_columns(
        outline.axes, outline.active, [axis.column for axis in space.search_axes if axis.column]
    )
    folder = None if out is None else path_of(out, "sweep(out=...)")
    dataset = None if folder is None else open_dataset(folder, identity.digest, outline.plans)
    table = _Table(columns, dataset, {} if dataset is None else dataset.read())
    known = {first: len(part) for first, part in table.parts.items()}
    pace = Pace()
    done = sum(known.values())
    report = progress or (lambda done, total: None)
    report(done, outline.plans)
    count = min(workers or usable_cpus(), max(1, -(-(outline.plans - done) // LEAST_CHUNK)))
    found = run_chunks(
        partial(timed_rows, model, input),
        chunks_of(outline.candidates(space, pod), outline.plans, known, pace),
        count,
        executor,
        MOST_SUBMITTED if executor is not None else AHEAD * count,
        lambda: workers is None and pace.is_short(outline.plans - done),
    )
    try:
        with closing(found):
            for first, chunk, (rows, seconds) in found:
                table.add(first, chunk, rows)
                pace.add(len(rows), seconds)
                done += len(rows)
                report(done, outline.plans)
    finally:
        table.write()
    return table.whole()


@dataclass(slots=True)
class _Table:
    """The rows of a sweep that are finished, in parts of consecutive ones.

    dataset: to which parts are written.
    parts: number of the first row -> the rows.
    waiting: number of the first plan -> the plans and rows of each chunk that is in no part yet.
    written: when parts were made last.
    """

    columns: SweepColumns
    dataset: SweepDataset | None
    parts: "dict[int, DataFrame]"
    waiting: dict[int, tuple[SweepChunk, list[SweepRow]]] = field(default_factory=dict)
    written: float = field(default_factory=monotonic)

    def add(self, first: int, chunk: SweepChunk, rows: list[SweepRow]) -> None:
        """Take in a chunk, and make parts now and then."""
        self.waiting[first] = chunk, rows
        if monotonic() - self.written >= PART_S:
            self.write()

    def write(self) -> None:
        """Make parts of all rows, as few as there can be of consecutive ones."""
        tried: list[SweepCandidate] = []
        outcomes: list[SweepRow] = []
        for first, (chunk, rows) in sorted(self.waiting.items(), key=itemgetter(0)):
            tried += chunk
            outcomes += rows
            if first + len(rows) not in self.waiting:
                begin = first + len(rows) - len(outcomes)
                self.parts[begin] = sweep_frame(self.columns, tried, outcomes)
                if self.dataset is not None:
                    self.dataset.write(begin, self.parts[begin])
                tried, outcomes = [], []
        self.waiting.clear()
        self.written = monotonic()

    def whole(self) -> "DataFrame":
        """Return all rows. Raise FileError if another run of the sweep wrote to the folder."""
        from pandas import concat

        if self.dataset is not None:
            self.dataset.check_parts(self.parts)
        return concat([self.parts[first] for first in sorted(self.parts)], ignore_index=True)
