"""The table of parameters and FLOPs beside the published ones, in experiments/systems/counts.md.

    python experiments/systems/counts.py experiments/systems/counts.md

writes it between the marks `<!-- counts -->` and `<!-- /counts -->` of the page. The published
counts are in `published_counts.csv`. A source may count multiply-accumulates (MAC), each of which
is two FLOPs here.
"""

import csv
import runpy
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tpusim import models
from tpusim.models import ARCHITECTURES, Architecture

FOLDER = Path(__file__).parent
TOLERANCE = 0.01
OTHERS = ("transformer",)
"""Architectures whose published models are language models, of which only some are listed."""

UNITS = {"M": 1e6, "B": 1e9}
FLOPS = {"GFLOP": 1e9, "GMAC": 2e9}


class Count(NamedTuple):
    """A line of the table: what a model has here, and what is published; None where nothing is.

    name: of the model or of its architecture.
    seq_len: tokens of a sequence; 0 for models that read none.
    parameters, flops: of the model here, FLOPs of a forward pass of one example.
    published: the parameters and FLOPs of the source as numbers.
    said: the same as the source writes them.
    """

    name: str
    seq_len: int
    parameters: int
    flops: int
    published: tuple[float | None, float | None]
    said: tuple[str, str]
    source: str
    reason: str

    @property
    def differences(self) -> tuple[float | None, float | None]:
        """Relative differences of parameters and FLOPs from the published ones."""
        found = (self.parameters, self.flops)
        return tuple(  # type: ignore[return-value]
            None if there is None else own / there - 1
            for own, there in zip(found, self.published, strict=True)
        )

    @property
    def differs(self) -> bool:
        """True if a published count is more than 1 % away."""
        return any(abs(each) > TOLERANCE for each in self.differences if each is not None)


def counts() -> Iterator[Count]:
    """Yield the rows of all named models, and of those that the file has besides."""
    with (FOLDER / "published_counts.csv").open(encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    named = [
        name
        for architecture, kind in ARCHITECTURES.items()
        for name in ([] if architecture in OTHERS else models.names(kind) or [architecture])
    ]
    for name in dict.fromkeys([*named, *rows]):
        yield _count(name, rows.get(name, {}))


def _count(name: str, row: Mapping[str, str]) -> Count:
    model = _model(name, row.get("changes", ""))
    seq_len = int(row.get("seq_len") or 512) if model.reads_text else 0
    parameters, flops = row.get("parameters", ""), row.get("flops", "")
    return Count(
        name,
        seq_len,
        model.parameter_count,
        model.graph(batch=1, seq_len=seq_len).model_flops(),
        (_number(parameters, UNITS, ""), _number(flops, FLOPS, " ")),
        (parameters, flops),
        row.get("source", ""),
        row.get("reason", ""),
    )


def _model(name: str, changes: str) -> Architecture:
    """Return a published model, or the default one of an architecture, with some fields changed."""
    given = tomllib.loads(changes)
    if name in ARCHITECTURES:
        default: Architecture = ARCHITECTURES[name](**given)
        return default
    kind = models.architecture_of(name)
    assert kind is not None
    keys = models.published_keys(kind, name)
    for key, value in given.items():
        if isinstance(value, dict):
            given[key] = type(keys[key])(**{**vars(keys[key]), **value})
    changed: Architecture = models.load(name, **given)
    return changed


def _number(text: str, units: Mapping[str, float], gap: str) -> float | None:
    """Return what a source says as a number: `86M`, `86,567,656` or `4.089 GMAC`."""
    if not text:
        return None
    for unit, size in units.items():
        if text.endswith(f"{gap}{unit}"):
            return float(text.removesuffix(f"{gap}{unit}")) * size
    return float(text.replace(",", ""))


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    heads = ("model", "parameters", "published", "", "forward GFLOP", "tokens", "published", "")
    yield f"| {' | '.join((*heads, 'source', 'why'))} |"
    yield f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} | --- | --- |"
    for one in counts():
        differences = ["" if each is None else f"{each:+.1%}" for each in one.differences]
        cells = (
            f"`{one.name}`",
            f"{one.parameters / 1e6:,.2f}M",
            one.said[0] or "-",
            differences[0],
            f"{one.flops / 1e9:,.2f}",
            str(one.seq_len or ""),
            one.said[1] or "-",
            differences[1],
            one.source,
            one.reason,
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the table into the pages that are named."""
    tables = {"counts": "\n".join(lines())}
    page_with = runpy.run_path(str(FOLDER / "table.py"))["page_with"]
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(page_with(page.read_text("utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
