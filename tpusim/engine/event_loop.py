"""Run the processes of lanes to their ends, or report what they wait for."""

from collections.abc import Generator, Sequence
from types import MethodType
from typing import Any, Protocol

from simpy import Environment, Event
from simpy.core import EmptySchedule


class StalledError(RuntimeError):
    """A lane waits for something that cannot happen.

    Within a lane it is a defect of the engine; between lanes it is a cycle of messages.
    """


class LaneProcess(Protocol):
    """A process that comes to an end."""

    @property
    def finished(self) -> bool:
        """True once it has come to its end."""
        ...

    def run(self) -> Generator[Event, Any, None]:
        """Return the process."""
        ...

    def status(self) -> str:
        """Return its position, for the message when nothing goes on."""
        ...


def run_processes(env: Environment, lanes: Sequence[LaneProcess]) -> int:
    """Run all lanes to their ends and return the number of events.

    Raise StalledError, with the position of each lane, if no event is left before.
    """
    events, step = 0, env.step
    try:
        for process in [env.process(lane.run()) for lane in lanes]:
            while not process.processed:
                step()
                events += 1
    except EmptySchedule:
        waiting = "; ".join(lane.status() for lane in lanes if not lane.finished)
        raise StalledError(f"nothing is left to happen, but {waiting}") from None
    finally:
        for name in [name for name, each in vars(env).items() if isinstance(each, MethodType)]:
            delattr(env, name)  # a method bound to its own object is a cycle
    return events
