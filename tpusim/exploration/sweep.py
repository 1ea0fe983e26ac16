"""The sweep: all plans of a space simulated, as a frame."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.text_files import path_of
from tpusim.exploration.chunks import chunks_of, outline_of, tasks_of
from tpusim.exploration.dataset import SweepDataset, SweepIdentity, open_dataset
from tpusim.exploration.frame import sweep_columns, sweep_frame
from tpusim.exploration.processes import check_workers, process_count, run_chunks
from tpusim.exploration.rows import simulate_task
from tpusim.exploration.space import Space
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Input
from tpusim.simulation.arguments import check_input, check_model, check_slice, described

if TYPE_CHECKING:
    from pandas import DataFrame


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
    hfu, tokens_per_s, hbm_peak_bytes, hbm_bytes, fits, exposed_s, fit` as in `Result`,
    `step_time_low_s, step_time_high_s, mfu_low, mfu_high`, which are the ends of its ranges, the
    labels of its `breakdown_s`, `status` and `reason`. A plan that does not fit has its numbers and
    a reason (`does not fit`), one that the model or the slice does not admit a reason only
    (`refused`, numbers NaN); none is missing.

    model: an architecture, or the name of a published one.
    pod: a slice, or its name, such as `v5e-256`.
    input: the hosts' input pipeline, beside which each plan is simulated; None for batches that are
        there when a step begins.
    workers: processes; by default one per CPU, or this process alone for few plans.
    executor: runs the chunks instead, for example that of a cluster (`ts.cluster`).
    progress: called with the plans done and the total as chunks finish.
    out: a folder for a Parquet dataset, one file per finished chunk. A later run of the same sweep
        reads what is there and runs the rest.

    Neither workers nor executor changes the frame. Raise TpusimError for a space that has no plan
    on `pod`, and for a folder that cannot be written or holds anything else.
    """
    order = "write sweep(model, space, slice)"
    model = check_model(model, order, "sweep")
    if not isinstance(space, Space):
        raise PlanError(f"the space is {described(space)}; {order}, with a space of ts.Space(...)")
    pod = check_slice(pod, order)
    check_input(input, space.base)
    check_workers(workers, executor, progress)
    identity = SweepIdentity(model, pod, input)
    outline = outline_of(space, pod, identity.add)
    columns = sweep_columns(
        outline.axes, outline.active, [axis.column for axis in space.search_axes if axis.column]
    )
    chunks = outline.chunks()
    sizes = [chunk.plans for chunk in chunks]
    folder = None if out is None else path_of(out, "sweep(out=...)")
    dataset = None if folder is None else open_dataset(folder, identity.digest, sizes)
    frames = {} if dataset is None else _known_frames(dataset, sizes)
    report = progress or (lambda done, total: None)
    done = sum(map(len, frames.values()))
    report(done, outline.plans)
    count = process_count(workers, outline.plans - done, len(sizes) - len(frames))
    together = count > 1 or executor is not None
    made = chunks_of(space, pod, chunks)
    tasks = enumerate(tasks_of(made, chunks, frozenset(frames), together=together))
    for _, task, rows in run_chunks(partial(simulate_task, model, input), tasks, count, executor):
        for (number, chunk), outcomes in zip(task, rows, strict=True):
            frames[number] = sweep_frame(columns, chunk, outcomes)
            if dataset is not None:
                dataset.write(number, frames[number])
            done += len(outcomes)
        report(done, outline.plans)
    return _joined([frames[n] for n in range(len(sizes))])


def _known_frames(dataset: SweepDataset, sizes: Sequence[int]) -> "dict[int, DataFrame]":
    """Return the chunks that an earlier run finished."""
    found = ((number, dataset.read(number)) for number in range(len(sizes)))
    return {number: frame for number, frame in found if frame is not None}


def _joined(frames: "list[DataFrame]") -> "DataFrame":
    from pandas import concat

    return concat(frames, ignore_index=True)
