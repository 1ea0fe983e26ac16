"""The result of a simulation: the numbers, and the interface that their report is made from.

A result is of a plan (`plan_result`) or of a compiled program (`replay_result`). This module has
what both share, and the abstract properties that each defines.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tpusim.accuracy import ErrorRange, HbmOdds, MeasuredMfu
from tpusim.base.errors import PlanError, nearest
from tpusim.base.html_text import html_bar, html_table
from tpusim.base.phase import Phase
from tpusim.base.plain_text import plain
from tpusim.base.shown_value import cut, shown
from tpusim.base.units import format_bytes, format_seconds
from tpusim.costs import CostedProgram, cost_classes, cost_programs
from tpusim.engine import BUBBLE as BUBBLE
from tpusim.engine import LaneMemory, Timeline, whole_bytes
from tpusim.hardware import Placement, Slice
from tpusim.program import Flops, Program, Single, largest_first_bytes, program_heap
from tpusim.results.advice import Advice
from tpusim.results.fit import Fit, fit_of
from tpusim.results.limit import PICO as PICO
from tpusim.results.reason import Reason
from tpusim.results.step_warning import StepWarning
from tpusim.results.totals import StepContents, to_host_bytes
from tpusim.results.unit_cost import UnitCost
from tpusim.results.ways_to_fit import WaysToFit

Each = TypeVar("Each")

FRAGMENTATION_LABEL = "fragmentation"
"""Bytes between buffers: the heap (`program_heap`) less the most that is held beside arguments."""

LONGEST_FACT = 160
MOST_PARTS = 4
"""Characters of a line, and parts of the breakdown, in `repr`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result(ABC):
    """One simulated step. Times in seconds, sizes in bytes of one device, shares as fractions.

    breakdown_s: the core's time by kind of work; exposed communication by mesh axes
        (`exposed fsdp`), and exposed waits for the host by its work (`exposed dispatch`,
        `exposed input`); sums to `step_time_s`.
    flops: of all devices together, by kind.
    hbm_peak_bytes, hbm_bytes: bytes that the step needs, and that the compiler can use.
    memory_bytes: the peak by category; sums to `hbm_peak_bytes`.
    link_use: the fraction of the step in which each link would be busy at its full rate.
    programs: the program of one device; with a pipeline, one of each stage. Times are means over
        the stages, and links are those of the busiest. Where devices differ (`Slice.slow`), times
        are means over all devices, and links are those of the busiest.
    lane: the stage, or the class of devices, with the highest peak, whose memory this is.
    adviser: simulates changes of the run, for `advice`.
    adviser_command: what to write for it on the command line.
    fitter: simulates changes with which the run fits, for `ways_to_fit`.
    reasoner: finds why the step takes as long as it does, for `reasons`.
    """

    adviser_command: ClassVar[str]
    pod: Slice
    placement: Placement
    step_time_s: float
    breakdown_s: dict[str, float]
    flops: Flops
    hbm_peak_bytes: float
    hbm_bytes: float
    memory_bytes: dict[str, float]
    link_use: dict[str, float]
    programs: Sequence[Program]
    timeline: Timeline
    lane: int = 0
    adviser: Callable[..., Advice] | None = field(default=None, repr=False, compare=False)
    fitter: Callable[[Any], WaysToFit] | None = field(default=None, repr=False, compare=False)
    reasoner: Callable[[Any], tuple[Reason, ...]] | None = field(
        default=None, repr=False, compare=False
    )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"a {type(self).__name__} has no {name!r}"
            own = [each for each in dir(type(self)) if not each.startswith("_")]
            raise AttributeError(text if name.startswith("_") else f"{text}; {nearest(name, own)}")

    @classmethod
    def of(
        cls,
        pod: Slice,
        placement: Placement,
        programs: Sequence[Program],
        timeline: Timeline,
        contents: StepContents,
        held: dict[str, float] | None = None,
        **own: Any,
    ) -> Self:
        """Return the result of a timeline of one lane for each of the programs.

        contents: of the programs, which are then not read.
        held: the peak of HBM by category, if known better than from the schedule, whose need is
            its peak and the bytes lost between buffers.
        own: the fields of this kind of result alone.
        """
        usable = pod.chip.device.hbm_usable_bytes
        lanes = range(len(timeline.lanes))
        each = [held or memory_held(_of(programs, at), timeline, at, usable) for at in lanes]
        lane = max(range(len(each)), key=lambda at: sum(each[at].values()))
        return cls(
            pod=pod,
            placement=placement,
            step_time_s=timeline.total_ps * PICO,
            breakdown_s={label: ps * PICO for label, ps in breakdown_ps(timeline).items()},
            flops=contents.flops,
            hbm_peak_bytes=sum(each[lane].values()),
            hbm_bytes=usable,
            memory_bytes=each[lane],
            link_use=link_shares(timeline),
            programs=programs,
            timeline=timeline,
            lane=lane,
            **own,
        )

    @property
    @abstractmethod
    def name(self) -> str:
        """The model or the program that ran."""

    @property
    @abstractmethod
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the model's FLOP/s over the bf16 peak; None if not known."""

    @property
    @abstractmethod
    def rates(self) -> str:
        """The rates of the step in words, utilisation first."""

    @property
    @abstractmethod
    def convention(self) -> str:
        """The convention by which FLOPs are counted, in words."""

    @abstractmethod
    def called(self, op: Single) -> str:
        """Return the user's name of an operation."""

    @abstractmethod
    def about(self) -> Iterator[tuple[str, str]]:
        """Yield head and text of the summary's entries on what ran, and how it was placed."""

    @abstractmethod
    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield head and text of the summary's notes on the numbers."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Return the entries of `result.json` for this kind of result alone, as plain data."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the summary."""

    def __repr__(self) -> str:
        """Return the headline in some lines; `print` shows the summary."""
        facts = ((what, " ".join(text.split())) for what, text in self.headline())
        lines = (f"  {what}: {cut(text, LONGEST_FACT)}" for what, text in facts)
        title = cut(" ".join(self.title.split()), LONGEST_FACT)
        return "\n".join([f"<{type(self).__name__}: {title}", *lines]) + ">"

    def _repr_html_(self) -> str:
        """Return the headline and the breakdown, for a notebook."""
        shares = {label: s / self.step_time_s for label, s in self.breakdown_s.items()}
        return html_table(self.title, self.headline()) + html_bar(shares)

    def warnings(self) -> tuple[StepWarning, ...]:
        """Return warnings on large losses that another sharding may avoid; a summary has them."""
        return ()

    def headline(self) -> Iterator[tuple[str, str]]:
        """Yield what the step takes, what it needs, and where the time goes, in words."""
        yield from ((head, text) for head, text in self.about() if head in ("plan", "placement"))
        likely = ""
        if (expected := self.error_range) is not None:
            likely = f" ({expected.words(self.step_time_s)})"
        yield "step time", f"{format_seconds(self.step_time_s)}{likely}"
        yield "rates", self.rates
        yield from (("warning", warning.text) for warning in self.warnings())
        need, have = map(format_bytes, (self.hbm_peak_bytes, self.hbm_bytes))
        yield "HBM", f"{need} of {have} per device: {self.fit}"
        longest = sorted(self.breakdown_s.items(), key=lambda item: -item[1])[:MOST_PARTS]
        yield "time", ", ".join(f"{label} {s / self.step_time_s:.1%}" for label, s in longest)

    @property
    def error_range(self) -> ErrorRange | None:
        """The range of measured over predicted time, from measured runs like this one, or None."""
        return None

    @property
    def step_time_range_s(self) -> tuple[float, float] | None:
        """Ends of the interval that holds the measured step time of 80 % of the runs like this one.

        None where `error_range` is.
        """
        found = self.error_range
        return None if found is None else found.of(self.step_time_s)

    @property
    def mfu_range(self) -> tuple[float, float] | None:
        """The MFU at both ends of `step_time_range_s`, the smaller first; None without either."""
        found, mfu = self.error_range, self.mfu
        return None if found is None or mfu is None else found.of_rate(mfu)

    @property
    def measured_mfu(self) -> MeasuredMfu | None:
        """The MFUs that published runs on this chip reach, of its kind if known; None if few."""
        return None

    @property
    def throughput(self) -> str:
        """What all chips together read in a second, in words; empty if that is not known."""
        return ""

    @property
    def throughput_range(self) -> str:
        """The ends of the throughput, in words; empty where `error_range` is None."""
        return ""

    @property
    def unit_cost(self) -> UnitCost | None:
        """Dollars for what the step reads, or for steps; None where the chip has no price."""
        return UnitCost.of(self.pod, 1e3 * self.step_time_s, "thousand steps", self.error_range)

    def reasons(self) -> tuple[Reason, ...]:
        """Return why the step takes as long as it does, the largest part of it first.

        At most five reasons, each about 2 % of the step or more, with a change that was simulated
        where one takes less time. The first call simulates up to six changes on the placement of
        the run, and takes about as long as they do; empty for a result that does not know how it
        was simulated.
        """
        return () if self.reasoner is None else self.reasoner(self)

    def advice(self, *, quick: bool = False) -> Advice:
        """Return what bounds the step, and what changes of the run would save, each simulated.

        Changes are tried one by one, and in a search for the best that can be made together, which
        takes some seconds. quick: only one by one.
        Raise PlanError for a result that was put together by hand, and not by `simulate`.
        """
        if self.adviser is None:
            raise PlanError(
                f"the result of {self.title} does not know how it was simulated, so no change of "
                "it can be; ask the result of ts.simulate(...) for its advice"
            )
        return self.adviser(self, quick=quick)

    def ways_to_fit(self) -> WaysToFit | None:
        """Return the smallest changes with which a plan fits that needs more HBM than there is.

        Each was simulated, and fits for sure where one of them does. None for a plan that needs no
        more, and for a result that does not know how it was simulated. The first call takes up to
        a few seconds.
        """
        if self.fits or self.fitter is None:
            return None
        return self.fitter(self)

    def defaults(self) -> tuple[tuple[str, str], ...]:
        """Return keys that have their defaults and decide, each with what it means, in words."""
        return ()

    def tables(self) -> Iterable[object]:
        """Return the tables below the entries of the summary."""
        return ()

    def idle_bytes(self, lane: int) -> int:
        """Return the bytes lost between the buffers of a lane's device."""
        return int(
            memory_held(self.program_of(lane), self.timeline, lane, self.hbm_bytes).get(
                FRAGMENTATION_LABEL, 0
            )
        )

    def counted_bytes(self, lane: int, nbytes: int) -> int:
        """Return how many of the bytes that a lane takes over the step count in its need."""
        return nbytes

    @property
    def pipeline(self) -> str:
        """The schedule of a pipeline and what it loses, in words; empty without one."""
        return ""

    @property
    def placement_given(self) -> bool:
        """True if a user or a compiler gave the placement; otherwise it was searched for."""
        return True

    @property
    def title(self) -> str:
        """The model or program, and the slice."""
        return f"{plain(self.name)} on {self.pod}"

    @property
    def program(self) -> Program:
        """The program of `lane`."""
        return self.program_of(self.lane)

    def program_of(self, lane: int) -> Program:
        """Return the program of a lane; those of devices that differ have the same."""
        return _of(self.programs, lane)

    @property
    def reported_lanes(self) -> tuple[int, ...]:
        """The lanes that tables of operations have: all stages, or else `lane` alone."""
        return tuple(range(len(self.programs))) if len(self.programs) > 1 else (self.lane,)

    def costed(self) -> tuple[CostedProgram, ...]:
        """Return the costs of each lane of the timeline."""
        if not self.timeline.devices:
            return cost_programs(self.programs, self.pod, self.placement)
        fold = len(self.timeline.lanes) < self.pod.devices
        return cost_classes(self.program, self.pod, self.placement, fold=fold)

    @property
    def shown(self) -> Timeline:
        """The timeline of `lane` alone, for figures and tables of one device."""
        one = len(self.timeline.lanes) == 1
        return self.timeline if one else _of_lane(self.timeline, self.lane)

    @property
    def peak_flops(self) -> float:
        """bf16 FLOP/s of all chips, at their own clock."""
        return self.pod.chips * self.pod.chip.full_peak

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: the model's FLOP/s and recomputation over the peak.

        Of a compiled program it is all work of its matrix unit.
        """
        useful = self.flops.model + self.flops.recompute
        return float(useful) / self.peak_flops / self.step_time_s

    @property
    def utilisation(self) -> str:
        """The MFU in words, or the HFU if the model's FLOPs are not known."""
        return f"HFU {self.hfu:.1%}" if self.mfu is None else f"MFU {self.mfu:.1%}"

    @property
    def fits(self) -> bool:
        """True if the peak is within what the compiler can use; `fit` says how sure that is."""
        return self.hbm_peak_bytes <= self.hbm_bytes

    @property
    def hbm_odds(self) -> HbmOdds | None:
        """The odds that it fits, from compiled plans like this one, or None."""
        return None

    @property
    def fit(self) -> Fit:
        """The verdict on the peak: borderline where it is too near to what can be used."""
        return fit_of(self.hbm_peak_bytes, self.hbm_bytes)

    @property
    def host_need_bytes(self) -> float:
        """Bytes that each host keeps for its devices, each copied to it once per step."""
        chips = min(self.pod.chip.host_chips, self.pod.topology.chips)
        most = max(to_host_bytes(program.body, program.segments) for program in self.programs)
        return chips * self.pod.chip.devices * most

    @property
    def exposed_s(self) -> float:
        """Communication and waits for the host that no compute hides, in total."""
        return sum(s for label, s in self.breakdown_s.items() if label.startswith(EXPOSED))

    @property
    def phases_s(self) -> dict[str, float]:
        """The step by phase, including exposed communication; sums to `step_time_s`."""
        totals = dict.fromkeys(Phase, 0)
        for (_, phase), picoseconds in core_ps(self.timeline).items():
            totals[phase] += picoseconds
        return {str(phase): picoseconds * PICO for phase, picoseconds in totals.items()}


def check_result(given: object, call: str, kind: type = Result) -> None:
    """Raise PlanError for what is no result, or none of that kind.

    call: the function that it was given to, for the message.
    """
    if not isinstance(given, kind):
        words = "a result of ts.simulate" if kind is Result else f"a {kind.__name__}"
        raise PlanError(f"{call} is given {shown(given)}; write {call}(result), with {words}")


def _of(each: Sequence[Each], lane: int) -> Each:
    """Return what belongs to a lane, of one for each program; all lanes may run the same."""
    return each[lane] if len(each) > 1 else each[0]


def _of_lane(timeline: Timeline, lane: int) -> Timeline:
    """Return one lane of a timeline, renumbered as its first."""
    return replace(
        timeline,
        lanes=(timeline.lanes[lane],),
        memory=(timeline.memory[lane],),
        tasks=tuple(replace(task, lane=0) for task in timeline.tasks if task.lane == lane),
        waits=tuple(replace(wait, lane=0) for wait in timeline.waits if wait.lane == lane),
        links=tuple(use._replace(lane=0) for use in timeline.links if use.lane == lane),
        devices=(),
    )


def link_shares(timeline: Timeline) -> dict[str, float]:
    """Return the fraction of the step in which each link of its busiest lane would be busy."""
    shares: dict[str, float] = {}
    for use in timeline.links:
        shares[use.link] = max(shares.get(use.link, 0.0), use.busy_ps / timeline.total_ps)
    return shares


def resident_bytes(program: Program) -> int:
    """Return the bytes that a program holds for the whole step."""
    return sum(whole_bytes(float(alloc.bytes)) for alloc in program.resident)


def memory_held(
    program: Program, timeline: Timeline, lane: int = 0, usable: float = inf
) -> dict[str, float]:
    """Return whole bytes at the peak by category, the largest first, and those lost between.

    usable: bytes that the compiler can use; see `_needed_bytes`.
    """
    memory = timeline.memory[lane]
    held = Counter(memory.by_category())
    held[FRAGMENTATION_LABEL] = _needed_bytes(program, memory, usable) - memory.peak_bytes
    return {category: float(nbytes) for category, nbytes in held.most_common() if nbytes}


def _needed_bytes(program: Program, memory: LaneMemory, usable: float) -> int:
    """Return the bytes that a lane needs: what it holds at its peak, and what lies between.

    Buffers lie in the order of the program, or else the largest first if they do not fit; then
    nothing lies between where no order could make them fit.
    """
    held, resident = memory.peak_bytes, resident_bytes(program)
    need = resident + program_heap(program) if held <= usable else held
    if need > usable >= held:
        need = resident + program_heap(program, largest_first_bytes)
    return max(held, int(need))


COMPUTE_LABELS = ("matmul", "attention", "convolution", "vector")
EXPOSED = "exposed "
BUBBLE_LABEL = "bubble"
"""The label in a breakdown of a pipeline stage's waits for other stages that are at work."""


def label_of(name: str) -> str:
    """Return the label in a breakdown of the core's time under a label of tasks."""
    return name if name in (*COMPUTE_LABELS, BUBBLE_LABEL) else f"{EXPOSED}{name}"


def with_sorted_axes(label: str) -> str:
    """Return a label of a breakdown with its mesh axes in alphabetical order.

    Results of several plans are then under the same labels.

    >>> with_sorted_axes("exposed tensor+fsdp")
    'exposed fsdp+tensor'
    """
    if not label.startswith(EXPOSED):
        return label
    return EXPOSED + "+".join(sorted(label.removeprefix(EXPOSED).split("+")))


def core_ps(timeline: Timeline) -> dict[tuple[str, Phase], int]:
    """Return the core's picoseconds by label and phase, largest first within work and exposed.

    A synchronous collective is exposed for its whole duration, an asynchronous one for as long as
    the core waits for it, and a stage's wait for others that are at work is a bubble. Values are
    means over the lanes and sum to `timeline.total_ps`.
    """
    split: Counter[tuple[str, Phase]] = Counter()
    labels: Counter[str] = Counter()
    for (name, phase), picoseconds in timeline.core_ps.items():
        label = label_of(name)
        split[label, phase] += picoseconds
        labels[label] += picoseconds
    ranked = sorted(
        labels,
        key=lambda label: (
            label not in COMPUTE_LABELS,
            label != BUBBLE_LABEL,
            -labels[label],
            label,
        ),
    )
    cells = [(label, phase) for label in ranked for phase in Phase if split[label, phase]]
    return _means(cells, split, timeline.core_count)


def _means(
    cells: list[tuple[str, Phase]], sums: Counter[tuple[str, Phase]], cores: int
) -> dict[tuple[str, Phase], int]:
    """Return the means per core in whole picoseconds, rounded such that their sum is exact."""
    means, so_far = {}, 0
    for cell in cells:
        before, so_far = so_far, so_far + sums[cell]
        means[cell] = so_far // cores - before // cores
    return means


def breakdown_ps(timeline: Timeline) -> dict[str, int]:
    """Return the core's picoseconds by label, in the order of `core_ps`."""
    totals: Counter[str] = Counter()
    for (label, _), picoseconds in core_ps(timeline).items():
        totals[label] += picoseconds
    return dict(totals)
