"""The instructions that the core of a lane walks through: integers and indices only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.costs.tasks import Task
from tpusim.program import Alloc

ON_CORE = -1


class Change(NamedTuple):
    """Bytes taken (or freed: negative), and by how many instances of each tensor, by index."""

    bytes: int
    tensors: tuple[tuple[int, int], ...]


class Need(NamedTuple):
    """All but the last `lag` issued instances of a step must be complete.

    Nothing is needed while `loop` has made fewer than `distance` trips.
    """

    step: int
    lag: int
    loop: int
    distance: int


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The messages of one collective, by index.

    paths: the numbers of the links that each crosses, in order. volumes: nanobytes of each.
    followers: the messages that wait for each. awaited: how many messages each waits for.
    hop_ps: the time from a chip to the next. rest: what the task draws on links other than ICI.
    """

    paths: Sequence[tuple[int, ...]]
    volumes: Sequence[int]
    followers: Sequence[Sequence[int]]
    awaited: Sequence[int]
    hop_ps: int
    rest: "Step | None"


@dataclass(slots=True, eq=False)
class Step:
    """One task in integer units; compared by identity, and never changed once compiled.

    stream: index of its transfer stream, or `ON_CORE`.
    volume: nanobytes of its flow; 0 when it has no flow and lasts `alone_ps`.
    cap: the rate that it draws alone, which is the most that it draws, in nB/ps.
    alone_ps: how long it takes alone, delay included.
    messages: what it sends over the torus hop by hop; the flow of the whole task is then not used.
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
    needs: tuple[Need, ...] = ()
    takes: Change | None = None
    frees: Change | None = None
    messages: Messages | None = None

    @property
    def moves(self) -> bool:
        """Whether it uses the network: it has a flow, or messages."""
        return self.volume > 0 or self.messages is not None


@dataclass(slots=True, eq=False)
class LoopStart:
    """Enter a loop: go to its end, which counts the first trip."""

    loop: int
    end: int


@dataclass(slots=True, eq=False)
class LoopEnd:
    """Go back to `body` while trips are left; `reach` is the longest distance of a dependency."""

    loop: int
    name: str
    trips: int
    body: int
    reach: int


Instruction: TypeAlias = Step | LoopStart | LoopEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One lane.

    loops: how many loops it has; trips: how many trips they make in all.
    links: name and rate (nB/ps) of each link; the steps number them from `first_link`.
    tensors: the first allocation of each tensor that the tasks take, by index.
    host: what the host does beside the lane; no instructions, so their index is none of `steps`.
    """

    name: str
    instructions: tuple[Instruction, ...]
    steps: tuple[Step, ...]
    loops: int
    trips: int
    streams: tuple[str, ...]
    links: tuple[tuple[str, int], ...]
    first_link: int
    tensors: tuple[Alloc, ...]
    resident: tuple[Alloc, ...]
    host: tuple[Step, ...]
