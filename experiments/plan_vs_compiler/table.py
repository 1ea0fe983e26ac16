"""The samples and the tables of their compiled twins: `twins.parquet` and so on."""

from pathlib import Path
from types import ModuleType

import extended
import few_examples
import offloaded
import pandas as pd
import sample
import systems

SAMPLES: dict[str, ModuleType] = {
    "twins": sample,
    "systems": systems,
    "extended": extended,
    "offloaded": offloaded,
    "few_examples": few_examples,
}
"""Modules that have the `numbers` of the twins of a sample, and `draw` the twin of a number."""

TWINS = "twins"


def table_of(name: str) -> Path:
    """Return the table of a sample."""
    return Path(__file__).parent / f"{name}.parquet"


def until_schedule(name: str = TWINS) -> pd.DataFrame:
    """Return the twins of a sample that were compiled until their schedule, a row each."""
    table = pd.read_parquet(table_of(name))
    return table[(table.error == "") & ~table.full.astype(bool)].reset_index(drop=True)
