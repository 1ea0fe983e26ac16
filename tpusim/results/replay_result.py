"""The result of a compiled program: its origin, its costs, and its unknown operations."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tpusim.accuracy import MeasuredMfu, measured_mfu_on
from tpusim.base.phase import Phase
from tpusim.base.units import format_seconds
from tpusim.program import Compute, Single, walk_ops
from tpusim.results.fit import BORDERLINE, Fit, fit_of
from tpusim.results.lines import SourceLine, explain_lines
from tpusim.results.result import PICO, Result, resident_bytes
from tpusim.results.step_warning import StepWarning
from tpusim.results.summary import summary

if TYPE_CHECKING:
    from tpusim.compiler import Costs

REPLAY_CONVENTION = (
    "HFU: all matrix FLOPs of the compiled program, whatever it computes twice or for nobody, "
    "against the bf16 peak"
)
UNKNOWN_MODEL = (
    "MFU is not known, as HLO does not say which FLOPs are the model's; give --model-flops "
    "(model_flops=...), or compile with tpusim.compiler.compile, which counts them"
)
COSTS: "Mapping[Costs, str]" = {
    "compiler": "the compiler's cycle estimates; collectives by the model of the network",
    "model": "the shapes inside each fusion; collectives by the model of the network",
}
"""The origin of the seconds, for each choice of costs."""

FEWER_FLOPS_NOTE = (
    "HFU is below MFU: the compiled program executes {left:.1%} fewer matrix FLOPs than the model "
    "has, as the compiler leaves out what no result needs, and computes once what is the same"
)
REDUNDANT_NOTE = (
    "the compiled program executes {times:.3g} times the model's FLOPs, of which recomputation is "
    "{again:.2g}: devices that share no part of a matmul each do it whole (shard one of its "
    "operands over their axis), and padding and masked blocks count too. Most are in {places}"
)
REDUNDANT_TIMES = 1.5
"""Executed FLOPs, without recomputation, over the model's, from which a note says so. Halves of
causal attention, and halos and padding of usual sizes, stay below."""
PLACES_SHOWN = 3
UNCOUNTED_NOTE = "HFU does not count the matrix FLOPs of what is not understood"
UNMENTIONED_SHARE = 0.005
"""The fraction of the model's FLOPs that may be missing without a note: padded edges."""

FROM_SCHEDULE = "the schedule"
"""The source of the HBM need of a program whose memory the compiler does not report."""

UNKNOWN_SHOWN = 3
"""Operations that a summary names of those not understood: the ones that take longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrigin:
    """The origin of a compiled program; fields that are not known are empty or None.

    name: of its function or its file.
    versions: of jax, jaxlib and libtpu.
    flags: compiler flags that were set.
    seconds: compile time.
    memory: the source of its HBM need.
    """

    name: str
    versions: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    seconds: float | None = None
    memory: str = FROM_SCHEDULE

    def __str__(self) -> str:
        made = ", ".join(f"{name} {version}" for name, version in self.versions)
        took = f" in {format_seconds(self.seconds)}" if self.seconds is not None else ""
        flags = f" with {' '.join(self.flags)}" if self.flags else ""
        return f"{self.name}, compiled by {made or 'a version that is not known'}{took}{flags}"


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation that is not understood: its name, the reason, and its time on the core."""

    name: str
    why: str
    picoseconds: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayResult(Result):
    """One run of a compiled program.

    It has no range (`error_range` is None): too few measured runs were replayed, and the residuals
    of plans hold what plans get wrong about the compiler, which a compiled program does not.

    flops: those outside recomputation count as the model's.
    costs: the origin of the seconds, see `COSTS`.
    remarks: notes from reading the HLO.
    unknown: operations that are not understood, which cost their bytes; the longest first.
    model_flops: of a step of all devices, without recomputation; None if not known.
    unnamed: axes of the program that are no axes of a mesh, and are named for what they are on.
    """

    adviser_command: ClassVar[str] = "--explain advice"
    origin: ProgramOrigin
    costs: "Costs"
    remarks: tuple[str, ...] = ()
    unknown: tuple[UnknownOperation, ...] = ()
    model_flops: float | None = None
    unnamed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return summary(self)

    @property
    def name(self) -> str:
        """The name of the function or the file."""
        return self.origin.name

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation; None if the model's FLOPs are not known."""
        if self.model_flops is None:
            return None
        return self.model_flops / self.peak_flops / self.step_time_s

    @property
    def measured_mfu(self) -> MeasuredMfu | None:
        """The MFUs of published runs of transformers on the chip.

        None if the MFU is not known, and for a program without a backward pass.
        """
        trains = self.phases_s[Phase.BACKWARD] > 0
        return measured_mfu_on(self.pod.chip.generation) if trains and self.mfu else None

    @property
    def unknown_share(self) -> float:
        """The fraction of the step in operations that are not understood."""
        return sum(each.picoseconds for each in self.unknown) / self.timeline.total_ps

    @property
    def rates(self) -> str:
        """Utilisation, and executed FLOP/s of a device, in words."""
        hfu = f"HFU {self.hfu:.1%}"
        known = hfu if self.mfu is None else f"MFU {self.mfu:.1%}, {hfu}"
        executed = float(self.flops.total) / self.pod.devices / self.step_time_s / 1e12
        return f"{known}, {executed:.1f} TFLOP/s per device executed"

    @property
    def convention(self) -> str:
        """The convention by which FLOPs are counted, in words."""
        return (
            REPLAY_CONVENTION
            if self.mfu is None
            else f"{REPLAY_CONVENTION}; MFU: the model's alone"
        )

    @property
    def fit(self) -> Fit:
        """The verdict on the peak, never borderline where the compiler reports it."""
        tolerance = BORDERLINE if self.origin.memory == FROM_SCHEDULE else 0
        return fit_of(self.hbm_peak_bytes, self.hbm_bytes, tolerance)

    def idle_bytes(self, lane: int) -> int:
        """Return the bytes by which the need exceeds the peak of the schedule."""
        return max(0, int(self.hbm_peak_bytes) - self.timeline.memory[lane].peak_bytes)

    def counted_bytes(self, lane: int, nbytes: int) -> int:
        """Return as many bytes as leave the highest level at the compiler's need.

        The compiler may place buffers over one another that the schedule keeps apart. All bytes
        that come and go then count by one factor, at most 1.
        """
        most, arguments = self.timeline.memory[lane].peak_bytes, resident_bytes(self.program)
        need = int(self.hbm_peak_bytes)
        if need >= most:
            return nbytes
        return nbytes * (need - arguments) // (most - arguments)

    def called(self, op: Single) -> str:
        """Return the line of code of an operation, or else the end of its scope, or its name."""
        return getattr(op, "source", "") or op.scope.rpartition("/")[2] or op.name

    def about(self) -> Iterator[tuple[str, str]]:
        """Yield the compiler, the mesh on the slice, and the origin of the seconds."""
        yield "program", str(self.origin)
        yield "placement", self._placed()
        yield "costs", f"{self.costs}: {COSTS[self.costs]}"

    def _placed(self) -> str:
        """Return the axes on the torus; those without a name are called by what they are on."""
        written = self.placement.written
        unnamed = [axis for axis in written if axis in self.unnamed]
        if unnamed and len(unnamed) == len(written):
            return f"groups on {' and on '.join(unnamed)}, as its mesh is not known"
        across = (
            f"{axis}={size} across slices"
            for axis, size in self.program.axes
            if size > 1 and axis not in written
        )
        return " · ".join(filter(None, (str(self.placement), *across))) or "nothing to place"

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield unknown operations, how MFU and HFU compare, and the remarks."""
        yield "unknown", self._unknown()
        if self.mfu is None:
            yield "note", UNKNOWN_MODEL
        elif (left := self._left_out()) > UNMENTIONED_SHARE:
            yield "note", UNCOUNTED_NOTE if self.unknown else FEWER_FLOPS_NOTE.format(left=left)
        yield from (("note", remark) for remark in self.remarks)

    def warnings(self) -> tuple[StepWarning, ...]:
        """Return whether the program executes far more FLOPs than the model has, and where."""
        if not self.model_flops or self._once() < REDUNDANT_TIMES * self.model_flops:
            return ()
        share = 1 - self.model_flops / self._once()
        what = self._redundant(self.model_flops)
        return (StepWarning("repeated work", share, what, what=what),)

    def tables(self) -> Iterator[object]:
        """Yield the user's most expensive lines."""
        yield explain_lines(self)

    def _left_out(self) -> float:
        """Return the fraction of the model's FLOPs that the program does not execute."""
        return 1 - float(self.flops.total) / self.model_flops if self.model_flops else 0.0

    def _once(self) -> float:
        """Return the executed FLOPs without recomputation."""
        return float(self.flops.total) - float(self.flops.recompute)

    def _redundant(self, model_flops: float) -> str:
        """Return how many times the model's FLOPs are executed, and the lines with the most."""
        found: defaultdict[str, float] = defaultdict(float)
        for op, times in walk_ops(self.program.body):
            if isinstance(op, Compute) and float(op.flops.total):
                found[self.called(op)] += times * float(op.flops.total)
        total = float(self.flops.total)
        most = sorted(found.items(), key=lambda place: -place[1])[:PLACES_SHOWN]
        places = (f"{name} ({each / total:.0%})" for name, each in most)
        return REDUNDANT_NOTE.format(
            times=total / model_flops,
            again=float(self.flops.recompute) / model_flops,
            places=", ".join(places),
        )

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
        """Return the facts of the program, and its step by line of code."""
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
            "lines": [
                {
                    "line": line.place,
                    **_line_facts(line),
                    "library": [
                        {"line": part.place, "function": part.function, **_line_facts(part)}
                        for part in line.library
                    ],
                }
                for line in explain_lines(self).rows
            ],
        }


def _line_facts(row: SourceLine) -> dict[str, Any]:
    return {
        "scope": row.scope,
        "seconds": row.seconds,
        "does_s": row.does_s,
        "phases_s": {str(phase): seconds for phase, seconds in row.phases_s.items()},
    }
