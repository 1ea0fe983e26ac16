"""What each collective of a compiled program moves, from its line, its axes and its size.

The line says the operation of the graph; which of the operation's tensors is moved follows from the
bytes, and where two tensors are alike, from what the plan moves over these axes.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.compiler_check.collective_moves import (
    BACKWARD,
    GRADIENT,
    OPTIMIZER,
    CollectiveMove,
    MoveKey,
    move_key,
    pass_of,
)
from tpusim.compiler_check.step_names import SourceNames, StepNames
from tpusim.graph import Pointwise, Tensor, TensorRole
from tpusim.program import CollectiveKind, Mode

OVER_THESE_AXES, THIS_WAY = 0.3, 0.2
"""How much farther, as logarithms, the size of a tensor may be off if the plan moves it over the
same axes, and if it does so in the same pass, by the same kind, and as often."""

BOTH_USES = 1.8
"""Weights that pass round the rings of a matmul's backward pass from which on they gather the
weight and scatter its gradient: one of the two is 1 to 1.67 weights on groups of 16 and 4, both are
2.27 to 2.67 (plain language models on v6e and v5e 4x4, libtpu 0.0.42.1)."""

ALIKE = 0.05
"""Relative difference of bytes up to which a collective without a line is one of the plan."""

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)

KeyedMove: TypeAlias = tuple[MoveKey, CollectiveMove]
_RingPlace: TypeAlias = tuple[str, Phase, tuple[str, ...]]
_PlannedMove: TypeAlias = tuple[MoveKey, CollectiveKind]
"""The permutes of one operation in one phase over the same axes; what the plan moves by a kind."""


@dataclass(slots=True)
class ProgramKeys:
    """The keys of a program's collectives, comparable with those of the plan.

    moves: the program's collectives, in order of issue.
    planned: the plan's, with their keys.
    """

    names: StepNames
    source: SourceNames
    moves: Sequence[CollectiveMove]
    planned: Sequence[KeyedMove]
    _rings: defaultdict[_RingPlace, float] = field(default_factory=lambda: defaultdict(float))
    _left: defaultdict[_PlannedMove, float] = field(default_factory=lambda: defaultdict(float))
    _sizes: dict[tuple[str, tuple[str, ...]], set[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moves = [self._settled(move) for move in self.moves]
        for move in self.moves:
            if move.mode is Mode.RING:
                self._rings[self._place(move)] += _elements(move) * move.runs
        for key, move in self.planned:
            self._left[key, move.op.kind] += move.wire_bytes
            sizes = self._sizes.setdefault((key.what, key.axes), set())
            if move.mode is not Mode.RING:
                sizes.add(_elements(move))

    def keyed(self) -> Iterator[KeyedMove]:
        """Yield each collective with its key; a ring of two uses of a weight as two halves."""
        keys = [self._key(move) for move in self.moves]
        beside = {
            (key.what, key.axes, move.op.kind in REDUCTIONS)
            for key, move in zip(keys, self.moves, strict=True)
            if key.when in (BACKWARD, GRADIENT) and move.mode is not Mode.RING
        }
        for key, move in zip(keys, self.moves, strict=True):
            uses = self._uses(key, move, beside)
            part = 1 / len(uses)
            for when in uses:
                yield (
                    key._replace(when=when),
                    replace(
                        move,
                        wire_bytes=move.wire_bytes * part,
                        exposed_s=move.exposed_s * part,
                    ),
                )

    def _key(self, move: CollectiveMove) -> MoveKey:
        operation = self.source.at(*move.places)
        if operation not in self.names.operations:
            return self._without_line(move, operation)
        if operation in self.names.lookups:
            return move_key(self.names, operation, pass_of(move, False), move)
        key = min(
            self._candidates(move, operation),
            key=lambda each: self._distance(move, operation, *each),
        )[1]
        self._left[key, move.op.kind] -= move.wire_bytes
        return key

    def _candidates(self, move: CollectiveMove, operation: str) -> Iterator[tuple[Tensor, MoveKey]]:
        """Yield the tensors of an operation that a collective may move, and the passes.

        What a norm with sums of all examples reduces in the forward pass are these, no weight.
        """
        op = self.names.operations.get(operation)
        sums = isinstance(op, Pointwise) and op.reads_twice and move.op.phase is Phase.FORWARD
        for tensor in self.names.tensors(operation):
            weight = tensor.role is TensorRole.PARAM
            if weight and (move.op.kind is CollectiveKind.ALL_TO_ALL or sums):
                continue
            gradient = weight and move.op.phase is not Phase.FORWARD
            if not (gradient and move.op.kind in REDUCTIONS):
                name = tensor.name
                if move.op.phase is Phase.BACKWARD:
                    name = self.names.sums.get(name, name)
                yield tensor, move_key(self.names, name, pass_of(move, False), move)
            if gradient and move.mode is not Mode.RING:
                key = move_key(self.names, tensor.name, GRADIENT, move)
                if move.op.kind in REDUCTIONS or (key, move.op.kind) in self._left:
                    yield tensor, key

    def _distance(
        self, move: CollectiveMove, operation: str, tensor: Tensor, key: MoveKey
    ) -> float:
        """Return how far a tensor's size is from what is moved, less for what the plan moves."""
        found = self._whole(move, operation)
        sizes = {self.names.elements(tensor, move.axes)}
        known = (key.what, key.axes) in self._sizes
        if known:
            sizes |= self._sizes[key.what, key.axes]
        uses = (1, 2) if move.mode is Mode.RING and tensor.role is TensorRole.PARAM else (1,)
        nearest = min(abs(log(found / size / n)) for size in sizes for n in uses if size)
        left = self._left.get((key, move.op.kind), 0.0)
        alike = left >= 0.5 * move.wire_bytes > 0
        return nearest - OVER_THESE_AXES * known - THIS_WAY * alike

    def _whole(self, move: CollectiveMove, operation: str) -> float:
        """Return the elements of the whole tensor, for each run of its operation."""
        runs = self.names.runs[operation]
        if move.mode is not Mode.RING:
            return max(_elements(move) * move.runs / runs, 1.0)
        sent = self._rings[self._place(move)] / runs
        size = self.names.devices(move.axes)
        return max(sent * size / max(size - 1, 1), 1.0)

    def _uses(
        self, key: MoveKey, move: CollectiveMove, beside: set[tuple[str, tuple[str, ...], bool]]
    ) -> tuple[str, ...]:
        """Return the passes of a collective: rings gather a weight, scatter its gradient, or both.

        beside: what is moved in the backward pass by other collectives, and whether it is reduced.
        """
        weight = key.what in self.names.weights and key.what not in self.names.lookups
        if key.when != BACKWARD or move.mode is not Mode.RING or not weight:
            return (key.when,)
        if move.op.phase is Phase.RECOMPUTE or (key.what, key.axes, True) in beside:
            return (BACKWARD,)
        if (key.what, key.axes, False) in beside:
            return (GRADIENT,)
        operation = self.source.at(*move.places)
        tensors = {tensor.name: tensor for tensor in self.names.tensors(operation)}
        if key.what not in tensors:
            return (key.when,)
        whole = self.names.elements(tensors[key.what], key.axes)
        both = self._whole(move, operation) / whole >= BOTH_USES
        return (BACKWARD, GRADIENT) if both else (GRADIENT,)

    def _without_line(self, move: CollectiveMove, operation: str) -> MoveKey:
        """Return the key of the plan's collective that is most alike, or else scope or line."""
        when = pass_of(move, False)
        alike = [
            (
                key.axes != move.axes,
                other.runs != move.runs,
                _unlike(other, move),
                self._left[key, other.op.kind] < 0.5 * move.wire_bytes,
                key,
                other.op.kind,
            )
            for key, other in self.planned
            if (key.when == when or (key.when == GRADIENT and when in (BACKWARD, OPTIMIZER)))
            and _unlike(other, move) <= ALIKE
        ]
        if alike:
            *_, key, kind = min(alike)
            self._left[key, kind] -= move.wire_bytes
            return key._replace(axes=move.axes)
        name = operation or move.places[0] or move.scope.rpartition("/")[2] or move.op.name
        return MoveKey(name, when, move.axes)

    def _settled(self, move: CollectiveMove) -> CollectiveMove:
        """Return a collective; permutes that bring rows of the embedding are no ring."""
        if move.mode is Mode.RING and self.source.at(*move.places) in self.names.lookups:
            return replace(move, mode=move.op.mode, algorithm=str(move.kind))
        return move

    def _place(self, move: CollectiveMove) -> _RingPlace:
        return (self.source.at(*move.places), move.op.phase, move.axes)


def _elements(move: CollectiveMove) -> float:
    """Return the elements of the tensor of one collective."""
    bits = re.search(r"\d+", move.op.dtype)
    return move.tensor_bytes * 8 / int(bits[0]) if bits else move.tensor_bytes


def _unlike(other: CollectiveMove, move: CollectiveMove) -> float:
    return abs(other.tensor_bytes / move.tensor_bytes - 1) if move.tensor_bytes else 1.0
