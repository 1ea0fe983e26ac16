"""Published probabilities that a slice can be placed, beside predicted ones.

python experiments/availability/run.py [--out DIR]
"""

import csv
from argparse import ArgumentParser
from pathlib import Path

from tpusim.failures import CAUSES, PodQuestion, availability
from tpusim.hardware import load_chip
from tpusim.report import availability_data, plot_availability
from tpusim.report.figures.render import svg_bytes

HERE = Path(__file__).parent

HOSTS = {
    ("v4", "switched"): 0.994,
    ("v4", "unrouted"): 0.994,
    ("v3", "given"): 0.992,
    ("v4", "goodput"): 0.995,
}
"""Availabilities of hosts: the first and the third fitted, each to one curve, the last published.
That of other rows follows from the rates of failures and repairs."""

PODS = {"v4": 64, "7x": 144}


def rows() -> list[dict[str, str]]:
    """Return the published points."""
    with (HERE / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted(row: dict[str, str]) -> float:
    """Return the prediction of a point."""
    chip, policy, size = row["chip"], row["policy"], row["slice"]
    usual = CAUSES["machine"].availability
    host = HOSTS.get((chip, policy), usual)
    if size.endswith("cubes"):
        whole = PodQuestion(load_chip(chip), (4, 4, 4), pool=PODS[chip])
        return whole.of_cubes(int(size.split()[0])).of_switches(host)[policy == "unrouted"]
    found = availability(chip, size, host_availability=host).chances
    return float(getattr(found, policy))


def main() -> None:
    """Print the table, and draw the v4 pod of the figure."""
    parser = ArgumentParser()
    parser.add_argument("--out", type=Path)
    folder = parser.parse_args().out
    print("| source | chip | links | slice | published | predicted | difference |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |")
    for row in rows():
        said, found = float(row["published"]), predicted(row)
        cells = (row["source"], row["chip"], row["policy"], row["slice"])
        numbers = (f"{said:.1%}", f"{found:.1%}", f"{100 * (found - said):+.1f}")
        print(f"| {' | '.join((*cells, *numbers))} |")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        data = availability_data(availability("v4", "8x16x16", host_availability=0.994))
        figure = svg_bytes(lambda: plot_availability(data), data.title)
        (folder / "availability.svg").write_bytes(figure)


if __name__ == "__main__":
    main()
