"""The command `tpusim sweep`."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

from tpusim.base.errors import TpusimError, blame
from tpusim.cli.progress import show_progress
from tpusim.exploration import Space, cluster, sweep
from tpusim.exploration.format import sweep_text
from tpusim.runfile import read_sweep


def sweep_file(
    path: str,
    settings: Sequence[str],
    folder: Path | None,
    workers: int | None,
    address: str | None,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> str:
    """Return the report of a sweep; a folder gets its table as a Parquet dataset.

    address: of the Dask scheduler whose workers run it, in place of processes of this machine.
    """
    if address is not None and workers is not None:
        raise TpusimError("--workers is for this machine and --cluster for others; give one")
    given = read_sweep(path, settings)
    run = given.run
    began = monotonic()
    with blame(run.where):
        space = Space(base=run.plan, **given.tries)
        where_run = nullcontext() if address is None else cluster(address)
        with where_run as executor, show_progress("sweep", "plans", quiet=quiet) as progress:
            table = sweep(
                run.model,
                run.pod,
                space,
                workers=workers,
                executor=executor,
                progress=progress,
                out=folder,
            )
    if as_json:
        return sweep_json(table)
    where = f"shapes of {run.pod.chip.name}" if space.shapes else run.pod
    head = (
        f"{len(table):,} plans of {run.model.name} on {where} ({run.pod.chips} chips) "
        f"in {monotonic() - began:.1f} s"
    )
    answer = sweep_text(table, head)
    return answer if folder is None else f"{answer}\n\ntable       {folder}"


def sweep_json(table: Any) -> str:
    """Return the table of a sweep as JSON, an object for each row; NaN is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return json.dumps({"plans": rows}, indent=2)
