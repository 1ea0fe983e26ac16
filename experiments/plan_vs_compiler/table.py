"""The table of the compiled twins, `twins.parquet`."""

from pathlib import Path

import pandas as pd

TABLE = Path(__file__).parent / "twins.parquet"


def until_schedule() -> pd.DataFrame:
    """Return the twins that were compiled until their schedule, a row each."""
    table = pd.read_parquet(TABLE)
    return table[(table.error == "") & ~table.full.astype(bool)].reset_index(drop=True)
