"""Predict each operation of a table of measured ones, and say how far off the costs are.

python experiments/operations/run.py TABLE.csv --out DIR [--profiles FILE...] [--programs FILE...]
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from attention_rows import completed
from rows import Measured, seconds_of

from tpusim.base.errors import FileError, TpusimError, blame
from tpusim.base.text_files import make_folder, read_text, write_files
from tpusim.profiles import read_profile

NEEDED = ("id", "chip", "kind", "params", "measured_us")
COLUMNS = (*NEEDED, "slice", "software")
MADE = ("group", "predicted_us", "measured_over_predicted", "error", "note")
LARGEST = 2**26
A_TABLE = f"a CSV table with the columns {', '.join(NEEDED)}"


def main() -> None:
    """Write `operations.csv` and `operations.json`, and print the summary."""
    arguments = _arguments()
    try:
        rows = read_table(arguments.table)
        make_folder(arguments.out)
        lines = [line for path in arguments.profiles for line in _hlo_lines(path)]
        predicted = predicted_rows(rows, lines, tuple(arguments.programs))
        summary = by_chip_and_kind(predicted)
        kinds = json.dumps(summary.reset_index().to_dict("records"), indent=1) + "\n"
        made = {"operations.csv": predicted.to_csv(index=False), "operations.json": kinds}
        write_files(arguments.out, {name: text.encode() for name, text in made.items()})
    except TpusimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if len(summary):
        print(summary.to_string(float_format="{:.2f}".format))
    if missing := int(predicted["predicted_us"].isna().sum()):
        print(f"{missing} of {len(predicted)} rows have no prediction; their notes say why")


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, by column; cells that a row lacks are empty.

    Raise FileError if it is no table, lacks a column that is needed, or has no rows.
    """
    with blame(str(path)):
        text = read_text(path, "a table of operations", A_TABLE, LARGEST)
        reader = csv.DictReader(StringIO(text, newline=""), restval="")
        try:
            rows = list(reader)
        except csv.Error as error:
            raise FileError(
                f"no table of comma-separated values ({error}); give {A_TABLE}"
            ) from error
        header = reader.fieldnames or []
        if missing := [name for name in NEEDED if name not in header]:
            raise FileError(f"no column {missing[0]!r}; give {A_TABLE}")
        if repeated := [name for name in header if header.count(name) > 1]:
            raise FileError(f"two columns {repeated[0]!r}; keep one of them")
        if not rows:
            raise FileError("a table without rows; add one for each operation")
    return rows


def predicted_rows(
    rows: list[dict[str, str]],
    lines: list[tuple[str, float]] | None = None,
    programs: tuple[Path, ...] = (),
) -> pd.DataFrame:
    """Return each row with its prediction, ratio and error, or with a note on why it has none.

    lines: HLO lines of profiles, with their microseconds; programs: HLO files of steps.
    """
    whole = [{**row, "params": params} for row, params in zip(rows, completed(rows), strict=True)]
    found = [_predicted(row, Measured.of(row, lines or (), programs)) for row in whole]
    given = [name for name in COLUMNS if name in rows[0]]
    return pd.DataFrame(found, columns=[*given, *MADE])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profiles", type=Path, nargs="*", default=[])
    parser.add_argument("--programs", type=Path, nargs="*", default=[], help="HLO files of steps")
    return parser.parse_args()


def _hlo_lines(path: Path) -> Iterator[tuple[str, float]]:
    """Yield each HLO line of a profile with the median of its microseconds."""
    operations = read_profile(path).operations
    for text, group in operations.groupby("text", observed=True):
        yield str(text), float(group["self_ps"].median()) / 1e6


def _predicted(row: dict[str, Any], measured: Measured) -> dict[str, Any]:
    facts = {name: row[name] for name in COLUMNS if name in row} | {"group": measured.group}
    try:
        if not 0 < measured.us < math.inf:
            raise ValueError(f"measured_us is {row['measured_us']!r}, and no time above 0")
        seconds = seconds_of(measured)
        if not 0 < seconds < math.inf:
            raise ValueError(f"the costs say {seconds} seconds")
    except (TpusimError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return {**facts, "note": f"no prediction: {error}"}
    ratio = measured.us / (seconds * 1e6)
    return {
        **facts,
        "measured_us": measured.us,
        "predicted_us": seconds * 1e6,
        "measured_over_predicted": ratio,
        "error": 1 / ratio - 1,
        "note": "",
    }


def by_chip_and_kind(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return rows, median and 90th percentile of the error, and the median ratio, by group."""
    known = predicted[predicted["predicted_us"].notna()]
    error = known["error"].abs()
    groups = known.assign(absolute=error).groupby(["chip", "group"])
    return pd.DataFrame(
        {
            "rows": groups.size(),
            "median_error": 100 * groups["absolute"].median(),
            "p90_error": 100 * groups["absolute"].quantile(0.9),
            "median_ratio": groups["measured_over_predicted"].median(),
        }
    )


if __name__ == "__main__":
    main()
