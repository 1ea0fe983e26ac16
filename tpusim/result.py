"""What a simulation returns: the numbers, where they come from, and how they print.

A result is of a plan (`plan_result`) or of a compiled program (`replay_result`). What both have is
here, with what each must say for itself.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from tpusim.engine import Timeline
from tpusim.hardware import Placement, Slice
from tpusim.phase import Phase
from tpusim.program import Flops, Program, Single
from tpusim.totals import step_flops, to_host_bytes

if TYPE_CHECKING:
    from tpusim.plan_result import PlanResult

PICO = 1e-12

FRAGMENTATION = 0.002
"""What lies idle between buffers, over the most that is live beside the step's arguments: the
median of 20 compiled programs (experiments/compiled_memory). 18 lose at most 2.2 %; the most, 6
and 17 %, where attention goes through HBM in buffers of several large sizes (libtpu 0.0.42.1)."""
IDLE = "fragmentation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(ABC):
    """One simulated step. Times in seconds, sizes in bytes of one device, shares as fractions.

    breakdown_s: where the core's time goes, by kind of work and, for communication that no compute
        hides, by mesh axes (`exposed fsdp`), and for the host by what it does (`exposed dispatch`,
        `exposed input`); sums to `step_time_s`.
    hbm_peak_bytes, hbm_bytes: what the step needs, and what the compiler can use.
    memory_bytes: who holds the peak, by category; sums to `hbm_peak_bytes`.
    link_use: the share of the step in which each link would be busy at its full rate.
    flops: of all devices together, each kind apart.
    programs: one device's program; with a pipeline, of each stage. lane: the stage that holds most,
        whose memory this is; times are means over the stages, and links are those of the busiest.
    """

    pod: Slice
    placement: Placement
    step_time_s: float
    breakdown_s: dict[str, float]
    flops: Flops
    hbm_peak_bytes: float
    hbm_bytes: float
    memory_bytes: dict[str, float]
    link_use: dict[str, float]
    programs: tuple[Program, ...]
    timeline: Timeline
    lane: int = 0

    @classmethod
    def of(
        cls, pod: Slice, placement: Placement, programs: tuple[Program, ...], timeline: Timeline,
        held: dict[str, float] | None = None, **own: Any,
    ) -> Self:  # fmt: skip
        """The result of a timeline of one lane for each of the programs.

        held: who holds the peak of HBM, where that is known better than from the schedule. The
        schedule's need is its peak, and what is lost between buffers (`FRAGMENTATION`). own: the
        fields of this kind of result alone.
        """
        each = [held or memory_held(one, timeline, lane) for lane, one in enumerate(programs)]
        lane = max(range(len(each)), key=lambda at: sum(each[at].values()))
        return cls(
            pod=pod, placement=placement, step_time_s=timeline.total_ps * PICO,
            breakdown_s={label: ps * PICO for label, ps in breakdown_ps(timeline).items()},
            flops=step_flops(programs),
            hbm_peak_bytes=sum(each[lane].values()), hbm_bytes=pod.chip.device.hbm_usable_bytes,
            memory_bytes=each[lane], link_use=link_shares(timeline),
            programs=programs, timeline=timeline, lane=lane, **own,
        )  # fmt: skip

    @property
    @abstractmethod
    def name(self) -> str:
        """What ran."""

    @property
    @abstractmethod
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the model's FLOPs a second, over the bf16 peak, if known."""

    @property
    @abstractmethod
    def rates(self) -> str:
        """The step's rates in words, utilisation first."""

    @property
    @abstractmethod
    def convention(self) -> str:
        """Which FLOPs are counted as what."""

    @abstractmethod
    def called(self, op: Single) -> str:
        """What a user calls an operation."""

    @abstractmethod
    def about(self) -> Iterator[tuple[str, str]]:
        """Entries of the summary that say what ran, and how it came to lie on the slice."""

    @abstractmethod
    def notes(self) -> Iterator[tuple[str, str]]:
        """Entries of the summary with what a reader of the numbers should know."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What `result.json` says of this kind of result alone, as plain data."""

    def tables(self) -> Iterable[object]:
        """What a summary of this kind of result shows besides, below its entries."""
        return ()

    def idle_bytes(self, lane: int) -> int:
        """What is lost between the buffers of a lane's device."""
        return int(memory_held(self.programs[lane], self.timeline, lane).get(IDLE, 0))

    @property
    def planned(self) -> "PlanResult | None":
        """The same where it is of a plan."""
        return None

    @property
    def pipelined(self) -> "PlanResult | None":
        """The same where it is of a plan with a pipeline."""
        return self.planned if self.planned and self.planned.plan.pipeline else None

    @property
    def placement_given(self) -> bool:
        """Whether the placement is given, by a user or a compiler, and not chosen."""
        return True

    @property
    def title(self) -> str:
        """What ran where."""
        return f"{self.name} on {self.pod}"

    @property
    def program(self) -> Program:
        """The program of the lane that holds most, of the only one where there is no pipeline."""
        return self.programs[self.lane]

    @property
    def shown(self) -> Timeline:
        """The timeline of that lane alone, as figures and tables of one device show it."""
        return self.timeline if len(self.programs) == 1 else _of_lane(self.timeline, self.lane)

    @property
    def peak_flops(self) -> float:
        """bf16 FLOP/s of all chips."""
        return self.pod.chips * self.pod.chip.flops["bf16"]

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: the model's FLOPs a second and recomputation, over the peak.

        Of a compiled program it is all that its matrix unit does.
        """
        useful = self.flops.model + self.flops.recompute
        return float(useful) / self.peak_flops / self.step_time_s

    @property
    def utilisation(self) -> str:
        """The MFU in words, or the HFU where the model's FLOPs are not known."""
        return f"HFU {self.hfu:.1%}" if self.mfu is None else f"MFU {self.mfu:.1%}"

    @property
    def fits(self) -> bool:
        """Whether the peak is within what the compiler can use."""
        return self.hbm_peak_bytes <= self.hbm_bytes

    @property
    def host_need_bytes(self) -> float:
        """Bytes that each host keeps for its devices: each of them copied to it once a step."""
        chips = min(self.pod.chip.host_chips, self.pod.topology.chips)
        most = max(to_host_bytes(program.body, program.segments) for program in self.programs)
        return chips * self.pod.chip.devices * most

    @property
    def exposed_s(self) -> float:
        """Communication and waits for the host that no compute hides, all together."""
        return sum(s for label, s in self.breakdown_s.items() if label.startswith(EXPOSED))

    @property
    def phases_s(self) -> dict[str, float]:
        """The step by its parts, exposed communication included; sums to `step_time_s`."""
        totals = dict.fromkeys(Phase, 0)
        for (_, phase), picoseconds in core_ps(self.timeline).items():
            totals[phase] += picoseconds
        return {str(phase): picoseconds * PICO for phase, picoseconds in totals.items()}

    def __str__(self) -> str:
        from tpusim.summary import summary

        return summary(self)


def _of_lane(timeline: Timeline, lane: int) -> Timeline:
    """One lane of a timeline, as its first."""
    return replace(
        timeline, lanes=(timeline.lanes[lane],), memory=(timeline.memory[lane],),
        tasks=tuple(replace(task, lane=0) for task in timeline.tasks if task.lane == lane),
        waits=tuple(replace(wait, lane=0) for wait in timeline.waits if wait.lane == lane),
        links=tuple(use._replace(lane=0) for use in timeline.links if use.lane == lane),
    )  # fmt: skip


def link_shares(timeline: Timeline) -> dict[str, float]:
    """The share of the step in which each link of its busiest lane would be busy."""
    shares: dict[str, float] = {}
    for use in timeline.links:
        shares[use.link] = max(shares.get(use.link, 0.0), use.busy_ps / timeline.total_ps)
    return shares


def memory_held(program: Program, timeline: Timeline, lane: int = 0) -> dict[str, float]:
    """Whole bytes at the peak by category, the largest first, with what is lost between them."""
    memory = timeline.memory[lane]
    held = Counter(memory.by_category())
    arguments = sum(float(alloc.bytes) for alloc in program.resident)
    held[IDLE] = int(FRAGMENTATION * max(memory.peak_bytes - arguments, 0))
    return {category: float(nbytes) for category, nbytes in held.most_common() if nbytes}


COMPUTE_LABELS = ("matmul", "attention", "convolution", "vector")
EXPOSED = "exposed "
BUBBLE = "bubble"
"""What a breakdown calls the time in which a stage of a pipeline waits for others at work."""


def label_of(name: str) -> str:
    """What a breakdown calls the core's time under a label of tasks."""
    return name if name in (*COMPUTE_LABELS, BUBBLE) else f"{EXPOSED}{name}"


def core_ps(timeline: Timeline) -> dict[tuple[str, Phase], int]:
    """The core's picoseconds by label and phase, largest label first within work and exposed.

    A synchronous collective is exposed for as long as it takes, an asynchronous one for as long as
    the core waits for it, and a stage's wait for others that are at work is a bubble. They are
    means over the lanes. The values sum to `timeline.total_ps`.
    """
    split: Counter[tuple[str, Phase]] = Counter()
    labels: Counter[str] = Counter()
    for (name, phase), picoseconds in timeline.core_ps.items():
        label = label_of(name)
        split[label, phase] += picoseconds
        labels[label] += picoseconds
    ranked = sorted(
        labels, key=lambda label: (label not in COMPUTE_LABELS, label != BUBBLE, -labels[label],
                                   label),
    )  # fmt: skip
    cells = [(label, phase) for label in ranked for phase in Phase if split[label, phase]]
    return _means(cells, split, len(timeline.lanes))


def _means(
    cells: list[tuple[str, Phase]], sums: Counter[tuple[str, Phase]], lanes: int
) -> dict[tuple[str, Phase], int]:
    """Whole picoseconds a lane that add up as the sums over all lanes do."""
    means, so_far = {}, 0
    for cell in cells:
        before, so_far = so_far, so_far + sums[cell]
        means[cell] = so_far // lanes - before // lanes
    return means


def breakdown_ps(timeline: Timeline) -> dict[str, int]:
    """The same by label alone."""
    totals: Counter[str] = Counter()
    for (label, _), picoseconds in core_ps(timeline).items():
        totals[label] += picoseconds
    return dict(totals)
