"""A program with its costs: what the engine runs.

A task lasts `delay_s`, then moves `bytes` over the links that it `uses` for at least `work_s`:
alone, `delay_s + max(work_s, max over uses of bytes x weight / capacity)`. While it moves, it draws
at most `bytes / work_s` (no cap when `work_s` is 0), and shares each link max-min fairly with the
other tasks that use it. `weight` is what one byte of the task puts on that link: an all-gather on a
ring of two directions puts 1 on each direction and 4 on HBM (it is written and read, both ways).
"""

from dataclasses import dataclass
from typing import TypeAlias

from tpusim.program import Alloc, Dep, Phase

CORE = "core"
HBM = "hbm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operation with its costs, in seconds and bytes.

    stream: `core`, or the transfer stream that runs it beside the core.
    label: what the breakdown calls its time (`matmul`, `attention`, `vector`, `fsdp`, ...).
    """

    name: str
    phase: Phase
    label: str
    stream: str = CORE
    delay_s: float = 0.0
    work_s: float = 0.0
    bytes: float = 0.0
    uses: tuple[tuple[str, int], ...] = ()
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoop:
    """`trips` runs of `body`, in order."""

    name: str
    trips: int
    body: tuple["Task | TaskLoop", ...]


TaskOp: TypeAlias = Task | TaskLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedProgram:
    """The tasks of one lane, the capacity (B/s) of each link they use, and what is resident."""

    name: str
    body: tuple[TaskOp, ...]
    links: tuple[tuple[str, float], ...]
    resident: tuple[Alloc, ...] = ()
