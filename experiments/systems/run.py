"""Measured systems of many kinds, each from its row, and how far off they are.

    python experiments/systems/run.py experiments/systems/published_systems.csv --out systems

writes `systems.csv`, a row per system, and `systems.json`, the statistics, and prints both. A table
has the columns of `published_systems.csv` or of `vision_runs.csv`.
"""

import argparse
import sys
from pathlib import Path

from tpusim.base.errors import TpusimError
from tpusim.validation.systems import validate_systems


def main() -> int:
    """Run the rows of a table; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the measured systems of a table.")
    parser.add_argument("table", type=Path, help="a CSV file of either form")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    given = parser.parse_args()
    try:
        report = validate_systems(given.table)
        report.write(given.out)
    except TpusimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
