"""The error table of README and changelog, generated from a validation.

    python -m tpusim.validation.error_table RUNS.csv README.md CHANGELOG.md

replaces the text between the two `errors` markers of each page.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError
from tpusim.base.units import format_seconds
from tpusim.validation.format import percent, signed
from tpusim.validation.validate import Validation, validate_file

BEGIN_MARKER, END_MARKER = "<!-- errors -->\n", "<!-- /errors -->"
FLAGSHIP_RUN = "MLP11-v4-480B"
IN_SAMPLE_CAVEAT = (
    "In sample: these runs were known when the constants were chosen, so the table says how well "
    "the model describes them, not how well it predicts."
)


def table(validation: Validation) -> str:
    """Return the lines between the markers: errors of simulated runs, by chip, and the guess."""
    return "\n".join(_lines(validation)) + "\n"


def in_page(page: str, lines: str) -> str:
    """Return the page with `lines` between its markers. Raise FileError if a marker is missing."""
    found = re.search(f"{re.escape(BEGIN_MARKER)}.*?{re.escape(END_MARKER)}", page, re.S)
    if not found:
        raise FileError(
            f"the page has no lines {BEGIN_MARKER.strip()} and {END_MARKER}; write them into it"
        )
    return f"{page[: found.start()]}{BEGIN_MARKER}{lines}{END_MARKER}{page[found.end() :]}"


def _lines(validation: Validation) -> Iterator[str]:
    found = validation.statistics
    yield "| published runs | simulated | median error | mean | 90th percentile | signed mean |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    yield _row("all chips", found)
    for chip, group in found["by_chip"].items():
        yield _row(f"TPU {chip}", group)
    yield _row(
        "the same runs, guessed by the median MFU of the chip's others",
        found["baseline"]["simulated_runs"],
    )
    yield ""
    yield from filter(None, (_flagship(validation), _pairs(found["pairs"])))
    yield IN_SAMPLE_CAVEAT


def _row(name: str, group: Mapping[str, Any]) -> str:
    errors = (percent(group[f"{kind}_abs_error"]) for kind in ("median", "mean", "p90"))
    count = f"{group['runs'] - group['failed']} of {group['runs']}"
    return f"| {name} | {count} | {' | '.join(errors)} | {signed(group['mean_error'])} |"


def _flagship(validation: Validation) -> str:
    """Return the sentence about the run that the simulator was written for, if it was simulated."""
    for one in validation.outcomes:
        if one.run.id == FLAGSHIP_RUN and one.predicted_s is not None:
            return (
                f"The 480B encoder on 2048 TPU v4 chips: {format_seconds(one.predicted_s)} "
                f"predicted, {one.run.step_s:g} s measured ({one.run.step_is}): "
                f"{signed(one.error)}."
            )
    return ""


def _pairs(found: Mapping[str, Any]) -> str:
    if found["median_abs_error"] is None:
        return ""
    return (
        f"Ratios of {found['pairs'] - found['failed']} pairs of runs that differ in one thing are "
        f"off by {percent(found['median_abs_error'])} in the median."
    )


def main(arguments: Sequence[str]) -> None:
    """Write the table of the first path's runs into the pages at the other paths."""
    runs, *pages = arguments
    lines = table(validate_file(runs))
    for page in map(Path, pages):
        page.write_text(in_page(page.read_text("utf-8"), lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
