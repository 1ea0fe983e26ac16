"""Step the processes of lanes to their ends, or say what they wait for."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from simpy import Environment, Event
from simpy.core import EmptySchedule


class StalledError(RuntimeError):
    """A lane waits for something that cannot happen.

    Within a lane it is a defect of the engine; between lanes it is a cycle in what they await.
    """


class Walker(Protocol):
    """Something with a process that comes to an end."""

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        ...

    def run(self) -> Generator[Event, Any, None]:
        """Its process."""
        ...

    def where(self) -> str:
        """What it is at, for the message when nothing goes on."""
        ...


def drive(env: Environment, lanes: Sequence[Walker]) -> int:
    """Run all lanes to their ends; the number of events that were processed.

    Raises StalledError, with what each lane is at, when nothing is left to happen before.
    """
    events, step = 0, env.step
    try:
        for process in [env.process(lane.run()) for lane in lanes]:
            while not process.processed:
                step()
                events += 1
    except EmptySchedule:
        waiting = "; ".join(lane.where() for lane in lanes if not lane.finished)
        raise StalledError(f"nothing is left to happen, but {waiting}") from None
    return events
