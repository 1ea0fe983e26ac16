"""Inputs of every lowering decision: the lowering of each group, and the nodes of a body."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tpusim.graph import Remat, is_sequence
from tpusim.lowering.asked_place import AskedPlace, GroupKey
from tpusim.lowering.body_entries import UNROLLED_RING
from tpusim.lowering.collective_choice import REDUCTIONS, is_of_experts
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.collectives_by_generation import (
    CircularPart,
    in_circular_pipeline,
    permutes_wait,
)
from tpusim.lowering.op_work import buffer_bytes, collective_bytes
from tpusim.lowering.operand_dtypes import reduced_in
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    Sizes,
    is_across,
    weights_are_tiled,
    within_slice,
)
from tpusim.plan import Axes, Compiler, Numerics, Sharding
from tpusim.program import CollectiveKind, Mode

Said = TypeVar("Said")


class BodyChoices(NamedTuple):
    """What a user decides about bodies: the parts of a plan that their lowering reads.

    remat: what a backward pass finds saved, and where.
    updated: axes over which the updates of weights are divided.
    repeated: a loop over microbatches runs the bodies, and adds up their gradients.
    """

    sharding: Sharding
    numerics: Numerics
    compiler: Compiler
    remat: Remat = Remat()
    updated: Axes = ()
    repeated: bool = False

    def tiles_weights(self, over: Axes = ()) -> bool:
        """Return True if weights are sharded over all axes, see `weights_are_tiled`."""
        return weights_are_tiled(self.sharding, self.compiler.style, self.updated, over)


class LoweringDecisions:
    """The lowering of one plan on one slice, for all bodies of its partitioned graph.

    buffers: of all bodies; passes add to them.
    declared: those of the partitioned graph.
    log: what the passes of a body asked, and the buffers that they set.
    ideal: True for a perfect compiler.
    weights: names of the model's weights.
    permutes: the mode of permutes beside the work of a ring.
    """

    def __init__(
        self,
        partitioned: PartitionedGraph,
        sizes: Sizes,
        choices: BodyChoices,
        place: AskedPlace,
        circular: CircularPart = "",
    ) -> None:
        """circular: what the bodies are of a circular pipeline."""
        self.sizes = sizes
        self.log: list[BodyEvent] = []
        self.buffers = LoggedBuffers(reduced_in(choices.numerics, partitioned.buffers), self.log)
        self.declared = partitioned.buffers
        self.weights = frozenset(weight.name for weight in partitioned.weights)
        self.choices = choices
        self.chip = place.pod.chip
        self.ideal = choices.compiler.lowering == "ideal"
        waits = permutes_wait(self.chip, choices.compiler, place.pod.topology.chips)
        self.permutes = Mode.SYNC if waits else Mode.RING
        self._circular = "" if self.ideal else circular
        self._place = place
        self._tiled: dict[Axes, bool] = {}
        self._lowerings: dict[GroupKey, Lowering] = {}

    def ask(self, question: Callable[..., Said], *about: Any) -> Said:
        """Return `question(self, *about)`, which depends on nothing else, and write it down."""
        said = question(self, *about)
        self.log.append(Asked(question, about, said))
        return said

    def agrees(self, log: Sequence["BodyEvent"]) -> bool:
        """Return True if all questions of a log have the same answers here.

        The buffers of the log are then added; otherwise all stay as they were.
        """
        before: list[tuple[str, Buffer | None]] = []
        for event in log:
            if isinstance(event, NewBuffer):
                before.append((event.key, self.buffers.get(event.key)))
                self.buffers[event.key] = event.buffer
            elif event.question(self, *event.about) != event.said:
                for key, buffer in reversed(before):
                    self.buffers.restore(key, buffer)
                return False
        return True

    def over(self, axes: Axes) -> Lowering:
        """Return the lowering of the collectives over `axes`."""
        return self._over((axes, self._is_tiled(axes)))

    def alone(self, collective: CollectiveNode) -> Lowering:
        """Return the lowering of a collective that no matmul takes in.

        That of the weights of sharded experts is the one of groups without rings: their tokens are
        exchanged beside them (layers of experts on v6e 4x4 and 16x16, libtpu 0.0.42.1).
        """
        tiled = not is_of_experts(collective) and self._is_tiled(collective.axes)
        return self._over((collective.axes, tiled))

    def holds(self, predicate: Callable[..., bool], axes: Axes, *given: float) -> bool:
        """Return what a predicate says of the group over `axes`, see `AskedPlace`."""
        return self._place.holds(predicate, (axes, self._is_tiled(axes)), *given)

    def nbytes(self, collective: CollectiveNode) -> float:
        """Return the bytes of the full tensor on one device."""
        return float(collective_bytes(collective, self.sizes))

    def buffer_bytes(self, key: str) -> float:
        """Return the bytes of a buffer on one device."""
        return float(buffer_bytes(self.buffers[key], self.sizes))

    def _over(self, group: GroupKey) -> Lowering:
        found = self._lowerings.get(group)
        if found is None:
            low = self._place.lowering(group)
            keeps_rings = self._circular == "loop" and self.choices.compiler.style == "plain"
            found = in_circular_pipeline(low, keeps_rings) if self._circular else low
            self._lowerings[group] = found
        return found

    def _is_tiled(self, axes: Axes) -> bool:
        found = self._tiled.get(axes)
        if found is None:
            found = self._tiled[axes] = self.choices.tiles_weights(axes)
        return found


def is_at_most(decisions: LoweringDecisions, collective: CollectiveNode, nbytes: float) -> bool:
    """Return True if a collective's tensor has at most so many bytes on one device."""
    return decisions.nbytes(collective) <= nbytes


class Asked(NamedTuple):
    """A question of a pass, `question(decisions, *about)`, and its answer."""

    question: Callable[..., Any]
    about: tuple[Any, ...]
    said: Any


class NewBuffer(NamedTuple):
    """A buffer that a pass added or changed."""

    key: str
    buffer: Buffer


BodyEvent: TypeAlias = Asked | NewBuffer
"""A question that was answered while the passes of a body ran, or a buffer that was set."""


class LoggedBuffers(dict[str, Buffer]):
    """Buffers by name, with a log of those that are set.

    Passes set single buffers, and none of another body.
    """

    def __init__(self, buffers: Mapping[str, Buffer], log: list[BodyEvent]) -> None:
        super().__init__(buffers)
        self._log = log

    def __setitem__(self, key: str, buffer: Buffer) -> None:
        self._log.append(NewBuffer(key, buffer))
        super().__setitem__(key, buffer)

    def restore(self, key: str, buffer: Buffer | None) -> None:
        """Set or delete a buffer without a note in the log."""
        if buffer is None:
            del self[key]
        else:
            super().__setitem__(key, buffer)


def is_unrolled(decisions: LoweringDecisions, axes: Axes) -> bool:
    """Return True if a ring over the devices of these axes is written out, and not a loop."""
    return bool(decisions.sizes.group(axes) <= UNROLLED_RING)


class Body:
    """One body between two passes: its nodes so far, and the inputs of decisions about them.

    name: of the loop, or `step`.
    looped: True if it is the body of a loop.
    sharding, numerics, compiler, remat: what a user decides about it, see `BodyChoices`.
    buffers: of all bodies; a pass adds those that it introduces.
    ideal, permutes, weights: see `LoweringDecisions`.

    Sizes and the place are asked for, so that bodies with the same answers have the same entries.
    """

    def __init__(
        self, decisions: LoweringDecisions, nodes: Sequence[Node], name: str, looped: bool
    ) -> None:
        self._decisions = decisions
        self.nodes = nodes
        self.name = name
        self.looped = looped
        self.sharding, self.numerics, self.compiler, self.remat, *_ = decisions.choices
        self.buffers: dict[str, Buffer] = decisions.buffers
        self.ideal = decisions.ideal
        self.permutes = decisions.permutes
        self.weights = decisions.weights

    def ask(self, question: Callable[..., Said], *about: Any) -> Said:
        """Return `question(decisions, *about)`, see `LoweringDecisions.ask`."""
        return self._decisions.ask(question, *about)

    def over(self, axes: Axes) -> Lowering:
        """Return the lowering of the collectives over `axes`."""
        return self.ask(LoweringDecisions.over, axes)

    def alone(self, collective: CollectiveNode) -> Lowering:
        """Return the lowering of a collective that no matmul takes in."""
        return self.ask(LoweringDecisions.alone, collective)

    @cached_property
    def collectives(self) -> list[CollectiveNode]:
        """The collectives, in order."""
        return [node for node in self.nodes if isinstance(node, CollectiveNode)]

    @cached_property
    def computes(self) -> list[ComputeNode]:
        """The compute nodes, in order."""
        return [node for node in self.nodes if isinstance(node, ComputeNode)]

    @cached_property
    def makers(self) -> dict[str, ComputeNode]:
        """The compute nodes by the name of their operation."""
        return {node.op.name: node for node in self.computes}

    @cached_property
    def moved_activations(self) -> tuple[frozenset[str], frozenset[str]]:
        """Buffers that gathers of activations write, and the operations whose results are summed.

        A matmul that reads one of the former, or is one of the latter, has a collective already. An
        all-to-all is none: the matmul does not read more than its device's part, nor is a halo.
        Gathers of tokens are left out.
        """
        moves = [
            c
            for c in self.collectives
            if c.purpose not in (Purpose.WEIGHT, Purpose.GRADIENT)
            and c.kind not in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
        ]
        written = frozenset(c.writes[0] for c in moves if not is_sequence(c.dim))
        return written, frozenset(c.maker for c in moves)

    @cached_property
    def crossing(self) -> dict[CollectiveNode, CollectiveNode]:
        """The collectives of weights and gradients within the slice that one across slices adjoins.

        Each is given with that other, which makes its operand or reads its result.
        """
        across = [c for c in self.collectives if is_across(c.axes)]
        gathered = {c.writes[0]: c for c in across if c.kind is CollectiveKind.ALL_GATHER}
        summed = {c.reads[0]: c for c in across if c.kind in REDUCTIONS}
        found = {}
        for each in self.collectives:
            if each.purpose is Purpose.WEIGHT and each.kind is CollectiveKind.ALL_GATHER:
                other = gathered.get(each.reads[0])
            elif each.purpose is Purpose.GRADIENT and each.kind is CollectiveKind.REDUCE_SCATTER:
                other = summed.get(each.writes[0])
            else:
                continue
            if other is not None:
                found[each] = other
        return found

    @cached_property
    def has_loop(self) -> bool:
        """True if the body contains a loop."""
        return any(isinstance(node, LoopNode) for node in self.nodes)

    @cached_property
    def lowerings(self) -> list[Lowering]:
        """The lowerings of its collectives, of those within a slice where there are any."""
        axes = {collective.axes for collective in self.collectives}
        return [self.over(each) for each in set(filter(within_slice, axes)) or axes]
