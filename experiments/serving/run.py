"""Predict each measured serving run of a table, from its columns, and say how far off it is.

python experiments/serving/run.py TABLE.csv --out DIR
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from errors import RowError, by_class, row_errors
from predictions import Serve, predict
from serving_row import ServingRow, read_table

from tpusim.base.errors import TpusimError
from tpusim.base.json_text import json_text
from tpusim.base.text_files import make_folder, write_files

SUMMARY = ("engine", "phase", "metric", "rows", "predicted", "median", "p90", "mean_by_family")


def main() -> None:
    """Write `serving.csv` and `serving.json`, and print the summary."""
    arguments = _arguments()
    try:
        rows = read_table(arguments.table)
        make_folder(arguments.out)
        errors = predicted_rows(rows)
        classes = by_class(errors)
        made = {"serving.csv": _csv(errors), "serving.json": json_text(_json(rows, classes)) + "\n"}
        write_files(arguments.out, {name: text.encode() for name, text in made.items()})
    except TpusimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(table_of(classes))
    if missing := {each.row: each.reason for each in errors if each.reason}:
        print(f"{len(missing)} of {len(rows)} rows have a measurement without a prediction:")
        print("\n".join(f"  {row}: {reason}" for row, reason in missing.items()))


def predicted_rows(rows: Iterable[ServingRow], serve: Serve | None = None) -> list[RowError]:
    """Return all measurements beside their predictions.

    serve: in place of the simulator.
    """
    found: list[RowError] = []
    for row in rows:
        try:
            predicted, assumed = predict(row, serve)
        except TpusimError as error:
            found += row_errors(row, {}, (), str(error))
        else:
            found += row_errors(row, predicted, assumed)
    return found


def table_of(classes: Sequence[dict[str, Any]]) -> str:
    """Return the summary as a table."""
    lines = [SUMMARY, *([_cell(made.get(key, "")) for key in SUMMARY] for made in classes)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(SUMMARY))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, float) else str(value)


def _csv(errors: Sequence[RowError]) -> str:
    text = StringIO()
    lines = [each.cells() for each in errors]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["row"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(rows: Sequence[ServingRow], classes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "judged": sum(row.judged for row in rows),
        "classes": list(classes),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="one row a run, one column a fact")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
