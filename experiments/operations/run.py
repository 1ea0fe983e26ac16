"""Predict each operation of a table of measured ones, and say how far off the costs are.

python experiments/operations/run.py TABLE.csv --out DIR [--profiles FILE...] [--programs FILE...]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from attention_rows import completed
from rows import Measured, seconds_of

from tpusim.base.errors import TpusimError
from tpusim.profiles import read_profile

COLUMNS = ("id", "chip", "slice", "kind", "params", "measured_us", "software")


def main() -> None:
    """Write `operations.csv` and `operations.json`, and print the summary."""
    arguments = _arguments()
    table = pd.read_csv(arguments.table, dtype={"params": str, "note": str}).fillna(
        {"params": "", "software": "", "note": ""}
    )
    lines = [line for path in arguments.profiles for line in _hlo_lines(path)]
    table["params"] = completed(table)
    predicted = pd.DataFrame(
        [
            _predicted(row, Measured.of(row, lines, arguments.programs))
            for row in table.to_dict("records")
        ]
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    predicted.to_csv(arguments.out / "operations.csv", index=False)
    summary = by_chip_and_kind(predicted)
    (arguments.out / "operations.json").write_text(
        json.dumps(summary.reset_index().to_dict("records"), indent=1) + "\n"
    )
    print(summary.to_string(float_format="{:.2f}".format))


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
    """Return a row with its prediction, ratio and error; or with why there is none."""
    facts = {name: row[name] for name in COLUMNS if name in row}
    try:
        seconds = seconds_of(measured)
        if not seconds > 0:
            raise ValueError(f"{seconds} seconds")
    except (TpusimError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return {**facts, "group": measured.group, "note": f"no prediction: {error}"}
    ratio = row["measured_us"] / (seconds * 1e6)
    return {
        **facts,
        "group": measured.group,
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
