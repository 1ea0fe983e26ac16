"""A measured operation, and the cost function that predicts it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_rows import attention
from collective_rows import collective
from convolution_rows import convolution
from hlo_rows import hlo_line
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
    """

    id: str
    chip: str
    slice: str
    kind: str
    params: str
    software: str
    line: str = ""
    programs: tuple[Path, ...] = ()

    @classmethod
    def of(
        cls,
        row: Mapping[str, Any],
        lines: Sequence[tuple[str, float]],
        programs: Sequence[Path] = (),
    ) -> "Measured":
        """Return a row of the table, joined to the whole line that a profile has for it."""
        names = ("id", "chip", "slice", "kind", "params", "software")
        return cls(**{name: str(row.get(name, "")) for name in names}, programs=tuple(programs))

    @property
    def host_timed(self) -> bool:
        """True if the time includes the dispatch by the host."""
        return HOST_TIMED in self.software

    @property
    def group(self) -> str:
        """The kind under which its error is counted."""
        return f"{self.kind}, host timed" if self.host_timed else self.kind


FUNCTIONS: tuple[tuple[str, Callable[[Any], float]], ...] = (
    (r"matmul", matmul),
    (r"pallas matmul", pallas_matmul),
    (r"mxu \w+ block", mxu_block),
    (r"convolution", convolution),
    (r"attention .*", attention),
    (r"step category: .*", step_category),
    (r"all-gather|reduce-scatter|all-reduce|all-to-all", collective),
    (r".*", hlo_line),
)


def seconds_of(measured: Measured) -> float:
    """Return the predicted seconds of a row. Raise ValueError if it cannot be read."""
    for kind, function in FUNCTIONS:
        if re.fullmatch(kind, measured.kind):
            return function(measured)
    raise ValueError(f"{measured.kind}: no cost function")
