"""The instructions of a lane's core: integers and indices only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tpusim.costs import Task
from tpusim.program import Alloc

ON_CORE = -1


class MemoryDelta(NamedTuple):
    """Bytes taken (or freed: negative), and the instances of each tensor, by index."""

    bytes: int
    tensors: tuple[tuple[int, int], ...]


class CompletionNeed(NamedTuple):
    """A dependency: all but the last `lag` issued instances of a step must be complete.

    Nothing is required while `loop` has run fewer than `distance` iterations.
    """

    step: int
    lag: int
    loop: int
    distance: int


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveMessages:
    """The messages of one collective, by index.

    paths: the numbers of the links that each crosses, in order.
    volumes: nanobytes of each.
    followers: the messages that wait for each.
    awaited: the number of messages that each waits for.
    hop_ps: the time from a chip to the next.
    rest: the task's use of links other than ICI.
    """

    paths: Sequence[tuple[int, ...]]
    volumes: Sequence[int]
    followers: Sequence[Sequence[int]]
    awaited: Sequence[int]
    hop_ps: int
    rest: "TaskStep | None"


class TaskNumbers(NamedTuple):
    """A task in integer units.

    volume: nanobytes of its flow; 0 if it has no flow and lasts `alone_ps`.
    cap: the most that it draws, and what it draws alone, in nB/ps.
    uses: number and weight of each link.
    alone_ps: its time alone, delay included.
    """

    delay_ps: int
    work_ps: int
    volume: int
    cap: int
    uses: tuple[tuple[int, int], ...]
    alone_ps: int


@dataclass(slots=True, eq=False)
class TaskStep:
    """One task of a lane; compared by identity, and never changed once compiled.

    stream: index of its transfer stream, or `ON_CORE`.
    delay_ps, ..., alone_ps: see `TaskNumbers`.
    messages: its messages on the torus, hop by hop; the flow of the whole task is then not used.
    """

    task: Task
    index: int
    stream: int
    delay_ps: int
    work_ps: int
    volume: int
    cap: int
    uses: tuple[tuple[int, int], ...]
    alone_ps: int
    needs: tuple[CompletionNeed, ...] = ()
    takes: MemoryDelta | None = None
    frees: MemoryDelta | None = None
    messages: CollectiveMessages | None = None

    @property
    def uses_network(self) -> bool:
        """True if it has a flow or messages."""
        return self.volume > 0 or self.messages is not None


@dataclass(slots=True, eq=False)
class LoopStart:
    """Enter a loop: go to its end, which counts the first iteration."""

    loop: int
    end: int
    takes: MemoryDelta | None = None


@dataclass(slots=True, eq=False)
class LoopEnd:
    """Go back to `body` while iterations are left.

    reach: the longest distance of a dependency.
    """

    loop: int
    name: str
    trips: int
    body: int
    reach: int
    frees: MemoryDelta | None = None


LaneInstruction: TypeAlias = TaskStep | LoopStart | LoopEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCode:
    """One lane.

    loops: the number of its loops.
    trips: the iterations of all loops together.
    links: name and rate (nB/ps) of each link; the steps number them from `first_link`.
    torus: chips along each dimension of the topology.
    tensors: the first allocation of each tensor that the tasks take, by index.
    host: tasks of the host beside the lane; no instructions, so their index is not one of `steps`.
    """

    name: str
    instructions: tuple[LaneInstruction, ...]
    steps: tuple[TaskStep, ...]
    loops: int
    trips: int
    streams: tuple[str, ...]
    links: tuple[tuple[str, int], ...]
    first_link: int
    tensors: tuple[Alloc, ...]
    resident: tuple[Alloc, ...]
    host: tuple[TaskStep, ...]
    torus: tuple[int, ...] = ()

    def with_steps(self, changed: Mapping[int, TaskStep]) -> "LaneCode":
        """Return the code with other steps at some indices."""
        steps = list(self.steps)
        for index, step in changed.items():
            steps[index] = step
        instructions = tuple(
            [steps[each.index] if type(each) is TaskStep else each for each in self.instructions]
        )
        return replace(self, instructions=instructions, steps=tuple(steps))

    def runs(self) -> list[tuple[TaskStep, int]]:
        """Return the steps in order, and how often each runs."""
        runs, found = [1], []
        for instruction in self.instructions:
            if isinstance(instruction, TaskStep):
                found.append((instruction, runs[-1]))
            elif isinstance(instruction, LoopEnd):
                runs.pop()
            else:
                end = self.instructions[instruction.end]
                runs.append(runs[-1] * (end.trips if isinstance(end, LoopEnd) else 1))
        return found
