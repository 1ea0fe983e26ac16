"""A measured operation, and the cost function that predicts it."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_rows import attention
from collective_rows import collective
from convolution_rows import convolution
from hlo_rows import HLO_LINE, hlo_line, whole_line
from kernel_rows import mxu_block, pallas_matmul
from matmul_rows import matmul
from step_rows import step_category

HOST_TIMED = "host timed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table.

    params: the shapes, as the kind has them.
    line: the whole HLO line, of a row that a profile has been joined to; else "".
    programs: HLO files, one of which may be the program of a step.
    us: microseconds that were measured; 0 if the row does not say.
    bytes, flops: what its profile counts, of it and of what is fused to it; 0 if it does not say.
    """

    id: str
    chip: str
    slice: str
    kind: str
    params: str
    software: str
    source: str = ""
    line: str = ""
    programs: tuple[Path, ...] = ()
    us: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    @classmethod
    def of(
        cls,
        row: Mapping[str, Any],
        lines: Sequence[tuple[str, float]],
        programs: Sequence[Path] = (),
    ) -> "Measured":
        """Return a row of the table, joined to the whole line that a profile has for it."""
        params, us = row.get("params") or "", _number(row, "measured_us")
        moved = re.search(r"xprof (\d+\.?\d*) GB/s", params)
        computed = _number(row, "measured_rate") if row.get("unit") == "TFLOP/s" else 0.0
        names = ("id", "chip", "slice", "kind", "params", "software", "source")
        return cls(
            **{name: str(row.get(name, "")) for name in names},
            line=whole_line(params, us, lines),
            programs=tuple(programs),
            us=us,
            bytes=float(moved[1]) * 1e3 * us if moved else 0.0,
            flops=computed * 1e6 * us,
        )

    @property
    def host_timed(self) -> bool:
        """True if the time includes the dispatch by the host."""
        return HOST_TIMED in self.software

    @property
    def group(self) -> str:
        """The kind under which its error is counted."""
        return f"{self.kind}, host timed" if self.host_timed else self.kind


def _number(row: Mapping[str, Any], key: str) -> float:
    """Return a number of a row; 0 if it has none."""
    try:
        found = float(row.get(key, 0))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


FUNCTIONS: Mapping[str, Callable[[Any], float]] = {
    r"matmul": matmul,
    r"pallas matmul": pallas_matmul,
    r"mxu \w+ block": mxu_block,
    r"convolution": convolution,
    r"attention .*": attention,
    r"step category: .*": step_category,
    r"all-gather|reduce-scatter|all-reduce|all-to-all": collective,
    r".*": hlo_line,
}
"""What predicts a row by its kind; the first pattern that fits counts."""


def seconds_of(measured: Measured) -> float:
    """Return the predicted seconds of a row. Raise ValueError if it cannot be read."""
    if HLO_LINE.search(measured.params):
        return hlo_line(measured)
    found = (each for kind, each in FUNCTIONS.items() if re.fullmatch(kind, measured.kind, re.S))
    return next(found)(measured)
