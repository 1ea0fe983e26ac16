"""Short ways to write costed programs for the tests of the engine."""

from typing import Any

from tpusim.costs import CORE, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import Record, Timeline, run
from tpusim.program import Alloc, Phase

US = 1_000_000  # picoseconds


def task(name: str, us: float = 0.0, **fields: Any) -> Task:
    """A task on the core whose core time is `us` microseconds."""
    values: dict[str, Any] = {"phase": Phase.FORWARD, "label": "any", "stream": CORE}
    return Task(name=name, **{**values, "work_s": us * 1e-6, **fields})


def transfer(name: str, us: float = 0.0, **fields: Any) -> Task:
    """A task on the stream `dma` that lasts at least `us` microseconds."""
    return task(name, us, **{"stream": "dma", **fields})


def loop(trips: int, *body: TaskOp, name: str = "loop") -> TaskLoop:
    return TaskLoop(name=name, trips=trips, body=body)


def program(*body: TaskOp, resident: tuple[Alloc, ...] = (), **links: float) -> CostedProgram:
    """A program over `links`, in bytes a microsecond."""
    rates = tuple((name, rate * 1e6) for name, rate in links.items())
    return CostedProgram(name="test", body=body, links=rates, resident=resident)


def simulate(*body: TaskOp, fold: bool = True, **links: float) -> Timeline:
    return run([program(*body, **links)], fold=fold)


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """First start and end of each task, in microseconds."""
    return {record.name: (record.start_ps / US, record.end_ps / US) for record in timeline.tasks}


def waits(timeline: Timeline) -> list[tuple[str, float, float]]:
    return [(each.name, each.start_ps / US, each.end_ps / US) for each in timeline.waits]


def each_start(record: Record) -> list[float]:
    return [start / US for start in record.starts()]
