"""The tables and the figure of errors in README and docs, generated from a validation.

    python -m tpusim.validation.error_table FOLDER README.md docs/accuracy.md docs/accuracy.svg

replaces the text between the markers that a page has: `errors`, `chip errors` (the same in short),
`ranges` and `orders`. A path that ends in `.svg` gets the figure.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from tpusim.accuracy import Residual, left_out_by
from tpusim.base.errors import FileError
from tpusim.base.text_files import write_file
from tpusim.base.units import format_seconds
from tpusim.report.figures.predicted_measured import MeasuredPoint, predicted_measured_svg
from tpusim.validation.format import order_rows, percent, signed, wrong_rows
from tpusim.validation.outcome import RunOutcome
from tpusim.validation.pairs import NOISE
from tpusim.validation.residual_table import residual_rows
from tpusim.validation.statistics import range_statistics
from tpusim.validation.validate import Validation, validate

ERRORS, CHIP_ERRORS, RANGES, ORDERS = "errors", "chip errors", "ranges", "orders"
"""The markers of the tables."""
SHOWN_FAMILIES = ("dense", "MoE", "int8/fp8", "multislice", "below 1B")
SHOWN_KINDS = ("maxtext dense bf16", "levanter")
ENCODER_480B = "mlp11-v4-480b"
IN_SAMPLE_CAVEAT = (
    "In sample: these runs were known when the constants were chosen, so the table says how well "
    "the model describes them, not how well it predicts."
)


def table(validation: Validation) -> str:
    """Return the lines between the markers: errors of simulated runs, by chip, and the guess."""
    return "\n".join(_lines(validation)) + "\n"


def chip_table(validation: Validation) -> str:
    """Return the lines of the short table: errors of simulated runs by chip."""
    return "\n".join(_chip_lines(validation)) + "\n"


def range_table(validation: Validation) -> str:
    """Return the lines of the table of ranges: how many runs are in theirs, and how wide it is."""
    return "\n".join(_range_lines(validation)) + "\n"


def order_table(validation: Validation) -> str:
    """Return the lines of the table of orders, and of the pairs that are ordered wrong."""
    return "\n".join(_order_lines(validation)) + "\n"


def points(validation: Validation) -> tuple[MeasuredPoint, ...]:
    """Return the points of the figure: the runs that were simulated."""
    return tuple(
        MeasuredPoint(one.run.chip, one.predicted_s, one.run.step_s, one.low_s, one.high_s)
        for one in validation.outcomes
        if one.predicted_s is not None and one.low_s is not None and one.high_s is not None
    )


def renewed(page: str, validation: Validation) -> str:
    """Return a page with the tables of today. Raise FileError if it has no table of errors."""
    if f"<!-- {CHIP_ERRORS} -->" in page:
        page = in_page(page, chip_table(validation), CHIP_ERRORS)
    else:
        page = in_page(page, table(validation))
    for name, lines in ((RANGES, range_table), (ORDERS, order_table)):
        page = in_page(page, lines(validation), name) if f"<!-- {name} -->" in page else page
    return page


def in_page(page: str, lines: str, name: str = ERRORS) -> str:
    """Return the page with `lines` between its markers. Raise FileError if a marker is missing."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, re.S)
    if not found:
        raise FileError(f"the page has no lines {begin.strip()} and {end}; write them into it")
    return f"{page[: found.start()]}{begin}{lines}{end}{page[found.end() :]}"


def _lines(validation: Validation) -> Iterator[str]:
    found = validation.statistics
    yield "| published runs | simulated | median error | mean | 90th percentile | bias |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    yield from _chip_rows(found, _row)
    yield _row(
        "the same runs, guessed by the median MFU of the chip's others",
        found["baseline"]["simulated_runs"],
    )
    yield ""
    yield from filter(None, (_encoder_480b(validation), _pairs(found["pairs"])))
    yield IN_SAMPLE_CAVEAT


def _chip_lines(validation: Validation) -> Iterator[str]:
    yield "| chips | runs | median error | mean | 90th percentile |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    yield from _chip_rows(validation.statistics, _chip_row)


def _range_lines(validation: Validation) -> Iterator[str]:
    found = validation.statistics
    yield "| published runs | runs | in their range | median half-width |"
    yield "| --- | ---: | ---: | ---: |"
    yield from _chip_rows(found, _range_row)
    for by, names in (("by_family", SHOWN_FAMILIES), ("by_kind", SHOWN_KINDS)):
        yield from (_range_row(name, found[by][name]) for name in names if name in found[by])
    near = [one for one in validation.outcomes if one.like_measured]
    far = [one for one in validation.outcomes if one.like_measured is False]
    yield _range_row("something like it was measured", _counted_ranges(near))
    yield _range_row("nothing like it was measured", _counted_ranges(far))
    for name in ("framework", "chip"):
        yield _left_out_row(residual_rows(validation), name)


def _order_lines(validation: Validation) -> Iterator[str]:
    head = f"differ by more than {NOISE:.0%}"
    yield f"| runs that differ in | groups | pairs | tau-b | {head} | ordered right | share |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    yield from map(_cells, order_rows(validation.statistics["pairs"]))
    if wrong := list(wrong_rows(validation.groups)):
        yield ""
        yield "| ordered wrong | measured, chip-seconds per sequence | predicted | differ in |"
        yield "| --- | ---: | ---: | --- |"
        yield from map(_cells, wrong)


def _cells(row: Sequence[str]) -> str:
    return f"| {' | '.join(map(str.strip, row))} |"


def _chip_rows(
    found: Mapping[str, Any], row: Callable[[str, Mapping[str, Any]], str]
) -> Iterator[str]:
    """Yield the row of all runs and that of each chip."""
    yield row("all chips", found)
    yield from (row(f"TPU {chip}", group) for chip, group in found["by_chip"].items())


def _left_out_row(rows: Sequence[Residual], name: str) -> str:
    """Return the row of ranges that are made without all runs of the same framework or chip."""
    found = list(left_out_by(rows, attrgetter(name)))
    if not found:
        return f"| all, each left out with all runs of its {name} | 0 | - | - |"
    inside = sum(row.within(one.low, one.high) for row, one in found) / len(found)
    width = median(one.half_width for _, one in found)
    return (
        f"| all, each left out with all runs of its {name} | {len(found)} | {percent(inside)} "
        f"| {percent(width)} |"
    )


def _counted_ranges(outcomes: Sequence[RunOutcome]) -> Mapping[str, Any]:
    return {"runs": len(outcomes)} | range_statistics(outcomes)


def _range_row(name: str, group: Mapping[str, Any]) -> str:
    cells = percent(group["coverage_80"]), percent(group["median_half_width"])
    return f"| {name} | {group['runs']} | {' | '.join(cells)} |"


def _row(name: str, group: Mapping[str, Any]) -> str:
    count = f"{group['runs'] - group['failed']} of {group['runs']}"
    return f"| {name} | {count} | {' | '.join(_sizes(group))} | {signed(group['mean_error'])} |"


def _chip_row(name: str, group: Mapping[str, Any]) -> str:
    return f"| {name} | {group['runs']} | {' | '.join(_sizes(group))} |"


def _sizes(group: Mapping[str, Any]) -> Iterator[str]:
    """Yield the median, the mean and the 90th percentile of a group's absolute errors."""
    yield from (percent(group[f"{kind}_abs_error"]) for kind in ("median", "mean", "p90"))


def _encoder_480b(validation: Validation) -> str:
    """Return the sentence about the 480B encoder's run, or nothing where it was not simulated."""
    for one in validation.outcomes:
        if one.run.id == ENCODER_480B and one.predicted_s is not None:
            return (
                f"The 480B encoder on 2048 TPU v4 chips: {format_seconds(one.predicted_s)} "
                f"predicted, {one.run.step_s:g} s measured ({one.run.measured.step_is}): "
                f"{signed(one.error)}.{_left_out_range(one)}"
            )
    return ""


def _left_out_range(one: RunOutcome) -> str:
    if one.low_s is None or one.high_s is None:
        return ""
    low, high = format_seconds(one.low_s), format_seconds(one.high_s)
    return f" Its range without its own measurement: {low} to {high}."


def _pairs(found: Mapping[str, Any]) -> str:
    if found["median_abs_error"] is None:
        return ""
    return (
        f"Ratios of {found['pairs'] - found['failed']} pairs of runs that differ in one decision "
        f"are off by {percent(found['median_abs_error'])} in the median."
    )


def main(arguments: Sequence[str]) -> None:
    """Write tables and figure of the first path's runs into the files at the other paths."""
    runs, *pages = arguments
    validation = validate(runs)
    for page in map(Path, pages):
        if page.suffix == ".svg":
            content = predicted_measured_svg(points(validation))
        else:
            content = renewed(page.read_text("utf-8"), validation).encode()
        write_file(page, content)


if __name__ == "__main__":
    main(sys.argv[1:])
