"""Simulates all plans of a space."""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.search.dataset import identity_of, open_dataset
from tpusim.search.parallel import processes, run_all
from tpusim.search.rows import rows
from tpusim.search.space import Space, candidates
from tpusim.search.table import columns, frame

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST, MOST, CHUNKS = 8, 256, 64
"""Plans a chunk, and about how many chunks a sweep has between the two."""


def sweep(
    model: Transformer, pod: Slice, space: Space, *, workers: int | None = None,
    executor: Executor | None = None, progress: Callable[[int, int], None] | None = None,
    out: Path | str | None = None,
) -> "DataFrame":  # fmt: skip
    """One row for each plan of `space`, in the order of `candidates(space, pod)`.

    The columns are the sizes of the mesh axes, the varied fields of the plan, `topology` where the
    space has shapes, `placement` as text, `step_time_s, mfu, hfu, tokens_per_s, hbm_peak_bytes,
    hbm_bytes, fits, exposed_s` as in `Result`, the labels of its `breakdown_s`, `status` and
    `reason`. A plan that does not fit has its numbers and a reason (`does not fit`), one that the
    model or the slice do not admit a reason alone (`refused`, numbers NaN); none is missing.

    workers: processes; by default one a CPU, or this process alone for few plans.
    executor: where the chunks run instead, for example that of a dask client.
    progress: called with the plans done and the plans in all as chunks finish.
    out: a folder for a Parquet dataset, one file a finished chunk. A later run of the same sweep
        reads what is there and runs the rest.

    Neither workers nor executor change the frame. Raises TpusimError for a space that has no plan
    on `pod`, and for a folder that cannot be written or holds anything else.
    """
    tried = tuple(candidates(space, pod))
    names = columns(tried, tuple(space.vary))
    size = min(MOST, max(LEAST, len(tried) // CHUNKS))
    chunks = {n: tried[n * size : (n + 1) * size] for n in range(-(-len(tried) // size))}
    dataset = None if out is None else open_dataset(Path(out), identity_of(model, pod, tried))
    frames = {} if dataset is None else {n: f for n in chunks if (f := dataset.read(n)) is not None}
    report = progress or (lambda done, whole: None)
    done = sum(map(len, frames.values()))
    report(done, len(tried))
    left = {n: chunk for n, chunk in chunks.items() if n not in frames}
    work = partial(rows, model, pod)
    count = processes(workers, len(tried) - done, len(left))
    for n, outcomes in run_all(work, left, count, executor):
        frames[n] = frame(names, chunks[n], outcomes)
        if dataset is not None:
            dataset.write(n, frames[n])
        done += len(outcomes)
        report(done, len(tried))
    return _joined([frames[n] for n in chunks])


def _joined(frames: "list[DataFrame]") -> "DataFrame":
    from pandas import concat

    return concat(frames, ignore_index=True)
