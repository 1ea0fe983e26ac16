"""The sweep: all plans of a space simulated, as a frame."""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.search.dataset import identity_of, open_dataset
from tpusim.search.frame import sweep_columns, sweep_frame
from tpusim.search.processes import process_count, run_chunks
from tpusim.search.rows import simulate_chunk
from tpusim.search.space import Space, candidates

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_CHUNK, LARGEST_CHUNK, USUAL_CHUNKS = 8, 256, 64
"""Plans per chunk, and the approximate number of chunks between these limits."""


def sweep(
    model: Architecture,
    pod: Slice,
    space: Space,
    *,
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

    workers: processes; by default one per CPU, or this process alone for few plans.
    executor: runs the chunks instead, for example that of a dask client.
    progress: called with the plans done and the total as chunks finish.
    out: a folder for a Parquet dataset, one file per finished chunk. A later run of the same sweep
        reads what is there and runs the rest.

    Neither workers nor executor changes the frame. Raise TpusimError for a space that has no plan
    on `pod`, and for a folder that cannot be written or holds anything else.
    """
    tried = tuple(candidates(space, pod))
    columns = sweep_columns(tried, [axis.column for axis in space.search_axes if axis.column])
    size = min(LARGEST_CHUNK, max(LEAST_CHUNK, len(tried) // USUAL_CHUNKS))
    chunks = {n: tried[n * size : (n + 1) * size] for n in range(-(-len(tried) // size))}
    dataset = None if out is None else open_dataset(Path(out), identity_of(model, pod, tried))
    frames = {} if dataset is None else {n: f for n in chunks if (f := dataset.read(n)) is not None}
    report = progress or (lambda done, total: None)
    done = sum(map(len, frames.values()))
    report(done, len(tried))
    left = {n: chunk for n, chunk in chunks.items() if n not in frames}
    work = partial(simulate_chunk, model)
    count = process_count(workers, len(tried) - done, len(left))
    for n, outcomes in run_chunks(work, left, count, executor):
        frames[n] = sweep_frame(columns, chunks[n], outcomes)
        if dataset is not None:
            dataset.write(n, frames[n])
        done += len(outcomes)
        report(done, len(tried))
    return _joined([frames[n] for n in chunks])


def _joined(frames: "list[DataFrame]") -> "DataFrame":
    from pandas import concat

    return concat(frames, ignore_index=True)
