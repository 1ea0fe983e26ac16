"""The result of a compiled program: who made it, how it is costed, and what is not known of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpusim.program import Single
from tpusim.result import PICO, Result
from tpusim.units import format_seconds

if TYPE_CHECKING:
    from tpusim.xla.work import Costs

CONVENTION = (
    "HFU: all matrix FLOPs of the compiled program, whatever it computes twice or for nobody, "
    "against the bf16 peak"
)
UNKNOWN_MODEL = (
    "MFU is not known, as HLO does not say which FLOPs are the model's; give --model-flops "
    "(model_flops=...), or compile with tpusim.xla.compile, which counts them"
)
COSTS: "Mapping[Costs, str]" = {
    "compiler": "the compiler's cycle estimates; collectives by the model of the network",
    "model": "the shapes inside each fusion; collectives by the model of the network",
}
"""What each choice of costs is made from."""

FEWER = (
    "HFU is below MFU: the compiled program executes {left:.1%} fewer matrix FLOPs than the model "
    "has, as the compiler leaves out what no result needs, and computes once what is the same"
)
NOT_COUNTED = "HFU does not count the matrix FLOPs of what is not understood"
LEFT_OUT = 0.005
"""The share of the model's FLOPs that may be missing without a word: edges that are padding."""

UNKNOWN_SHOWN = 3
"""Operations that are not understood and are named in a summary: those that take longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a compiled program comes from; what is not known is empty or None.

    name: of its function or its file. versions: of jax, jaxlib and libtpu. flags: the compiler's
    that were set. seconds: what compiling took. memory: who says what it needs of HBM.
    """

    name: str
    versions: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    seconds: float | None = None
    memory: str = "the schedule"

    def __str__(self) -> str:
        made = ", ".join(f"{name} {version}" for name, version in self.versions)
        took = f" in {format_seconds(self.seconds)}" if self.seconds is not None else ""
        told = f" with {' '.join(self.flags)}" if self.flags else ""
        return f"{self.name}, compiled by {made or 'a version that is not known'}{took}{told}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """An operation that is not understood: its name, why, and its picoseconds on the core."""

    name: str
    why: str
    picoseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult(Result):
    """One run of a compiled program.

    costs: whose seconds the work has, see `COSTS`. remarks: what the reader of the HLO noted.
    unknown: operations that are not understood, which cost their bytes; the longest first.
    model_flops: of a step of all devices, without what is recomputed, where known.
    flops: those outside recomputation count as the model's.
    """

    origin: Origin
    costs: "Costs"
    remarks: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    model_flops: float | None = None

    @property
    def name(self) -> str:
        """The name of the function or the file."""
        return self.origin.name

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, where the model's FLOPs are known."""
        if self.model_flops is None:
            return None
        return self.model_flops / self.peak_flops / self.step_time_s

    @property
    def unknown_share(self) -> float:
        """The share of the step in operations that are not understood."""
        return sum(each.picoseconds for each in self.unknown) / self.timeline.total_ps

    @property
    def rates(self) -> str:
        """Utilisation, and executed FLOP/s of a device."""
        hfu = f"HFU {self.hfu:.1%}"
        known = hfu if self.mfu is None else f"MFU {self.mfu:.1%}, {hfu}"
        executed = float(self.flops.total) / self.pod.devices / self.step_time_s / 1e12
        return f"{known}, {executed:.1f} TFLOP/s a device executed"

    @property
    def convention(self) -> str:
        """Which FLOPs are counted, and whose the model's are."""
        return CONVENTION if self.mfu is None else f"{CONVENTION}; MFU: the model's alone"

    def idle_bytes(self, lane: int) -> int:
        """What the need is above the peak of the schedule."""
        return max(0, int(self.hbm_peak_bytes) - self.timeline.memory[lane].peak_bytes)

    def called(self, op: Single) -> str:
        """The line of the user's code that it comes from, or the end of its scope, or its name."""
        return getattr(op, "source", "") or op.scope.rpartition("/")[2] or op.name

    def about(self) -> Iterator[tuple[str, str]]:
        """Who compiled it, its mesh on the slice, and whose seconds its work has."""
        yield "program", str(self.origin)
        yield "placement", self._placed()
        yield "costs", f"{self.costs}: {COSTS[self.costs]}"

    def _placed(self) -> str:
        """The axes on the torus; those that have no name are called by what they lie on."""
        written = self.placement.written
        unnamed = [axis for axis, parts in written.items() if axis == ",".join(parts)]
        if unnamed and len(unnamed) == len(written):
            return f"groups on {' and on '.join(unnamed)}, as its mesh is not known"
        across = (
            f"{axis}={size} across slices" for axis, size in self.program.axes
            if size > 1 and axis not in written
        )  # fmt: skip
        return " · ".join(filter(None, (str(self.placement), *across))) or "nothing to place"

    def notes(self) -> Iterator[tuple[str, str]]:
        """What is not understood, what is not known, and what the reader noted."""
        yield "unknown", self._unknown()
        if self.mfu is None:
            yield "note", UNKNOWN_MODEL
        elif (left := self._left_out()) > LEFT_OUT:
            yield "note", NOT_COUNTED if self.unknown else FEWER.format(left=left)
        yield from (("note", remark) for remark in self.remarks)

    def tables(self) -> Iterator[object]:
        """The user's most expensive lines."""
        from tpusim.lines import explain_lines

        yield explain_lines(self)

    def _left_out(self) -> float:
        """The share of the model's FLOPs that the program does not execute."""
        return 1 - float(self.flops.total) / self.model_flops if self.model_flops else 0.0

    def _unknown(self) -> str:
        if not self.unknown:
            return "nothing: all operations of the program are understood"
        shown = [
            f"{each.name} {format_seconds(each.picoseconds * PICO)} ({each.why})"
            for each in self.unknown[:UNKNOWN_SHOWN]
        ]
        left = len(self.unknown) - len(shown)
        more = f", and {left} more" if left else ""
        return (
            f"{self.unknown_share:.2%} of the step is in operations that are not understood and "
            f"cost their bytes: {', '.join(shown)}{more}"
        )

    def facts(self) -> Mapping[str, Any]:
        """What is known of the program."""
        return {
            "convention": self.convention,
            "replay": {
                "program": self.origin.name,
                "compiled_with": dict(self.origin.versions),
                "compiler_flags": list(self.origin.flags),
                "compile_s": self.origin.seconds,
                "mesh": dict(self.program.axes),
                "costs": self.costs,
                "memory_from": self.origin.memory,
                "model_flops": self.model_flops,
                "unknown_share": self.unknown_share,
                "unknown": [
                    {"operation": each.name, "why": each.why, "seconds": each.picoseconds * PICO}
                    for each in self.unknown
                ],
                "notes": list(self.remarks),
            },
        }
