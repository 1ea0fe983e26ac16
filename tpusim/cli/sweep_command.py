"""What `tpusim sweep` says of refused plans, of Ctrl-C, and as JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpusim.base.errors import InterruptedWorkError
from tpusim.base.json_text import json_text
from tpusim.sweeps import Space

REFUSED = 3
"""The exit code of a sweep in which every plan of a kind is refused."""


def kinds(space: Space) -> list[str]:
    """Return the columns whose values a user wrote one by one."""
    listed = space.shapes is not None and not isinstance(space.shapes, str)
    return [*space.vary, *(["topology"] if listed else [])]


@contextmanager
def resumable(folder: Path | None) -> Iterator[None]:
    """Say, where Ctrl-C ends the sweep, how it goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise InterruptedWorkError(
            "interrupted, and no table is kept, as there is no --out DIR; with one, the same "
            "command goes on where it stopped"
            if folder is None
            else f"interrupted; the plans that are done are in {folder}: the same command goes on "
            "where it stopped"
        ) from stop


def sweep_json(table: Any) -> str:
    """Return the table of a sweep as JSON, an object for each row; NaN is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return json_text({"plans": rows})
