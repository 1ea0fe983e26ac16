"""The collectives of a plan beside those of a program: bytes on the wire, modes and algorithms."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.compiler_check.collective_moves import CollectiveMove, MoveKey
from tpusim.compiler_check.program_keys import KeyedMove

Shares: TypeAlias = Mapping[str, float]
"""Bytes on the wire by kind, mode or algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """What one side moves of a tensor, on one device in a step.

    kinds, modes, algorithms: bytes on the wire by each; all three have the same sum.
    exposed_s: seconds in which the core waits for it.
    operations: names of the collectives in the side's program.
    """

    kinds: Shares
    modes: Shares
    algorithms: Shares
    exposed_s: float
    operations: tuple[str, ...]

    @classmethod
    def of(cls, moves: Iterable[CollectiveMove]) -> "CollectiveTraffic":
        """Return the sum of collectives."""
        kinds: defaultdict[str, float] = defaultdict(float)
        modes: defaultdict[str, float] = defaultdict(float)
        algorithms: defaultdict[str, float] = defaultdict(float)
        exposed, names = 0.0, dict[str, None]()
        for move in moves:
            kinds[str(move.op.kind)] += move.wire_bytes
            modes[str(move.mode)] += move.wire_bytes
            algorithms[move.algorithm] += move.wire_bytes
            exposed += move.exposed_s
            names[move.op.name] = None
        return cls(
            kinds=dict(kinds),
            modes=dict(modes),
            algorithms=dict(algorithms),
            exposed_s=exposed,
            operations=tuple(names),
        )

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device receives in a step."""
        return sum(self.modes.values())

    @property
    def kind(self) -> str:
        """The kind that moves most of the bytes."""
        return _most(self.kinds)

    @property
    def mode(self) -> str:
        """The mode in which most of the bytes are moved."""
        return _most(self.modes)

    @property
    def algorithm(self) -> str:
        """The algorithm by which most of the bytes are moved."""
        return _most(self.algorithms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCollective:
    """A weight or a tensor that both sides move, or one of them.

    what: the weight, the tensor, or the line or scope of a program's that is not attributed.
    when: `forward`; `backward`, recomputation included; `gradient` of a weight; or `optimizer`.
    axes: of the mesh.
    plan, program: None where that side does not move it.
    """

    what: str
    when: str
    axes: tuple[str, ...]
    plan: CollectiveTraffic | None
    program: CollectiveTraffic | None

    @property
    def exposed_s(self) -> tuple[float, float]:
        """Seconds of waiting in the plan and in the program."""
        return _seconds(self.plan), _seconds(self.program)

    @property
    def wire_bytes(self) -> tuple[float, float]:
        """Bytes on the wire in the plan and in the program."""
        sides = (self.plan, self.program)
        first, second = (side.wire_bytes if side else 0.0 for side in sides)
        return first, second


def _seconds(side: CollectiveTraffic | None) -> float:
    return side.exposed_s if side else 0.0


def _most(shares: Shares) -> str:
    return max(shares, key=lambda name: shares[name], default="")


def compared_collectives(
    plan: Iterable[KeyedMove], program: Iterable[KeyedMove]
) -> tuple[ComparedCollective, ...]:
    """Return the collectives of both sides by weight or tensor, pass and axes.

    Those with the most bytes on either side are first.
    """
    sides: tuple[dict[MoveKey, list[CollectiveMove]], ...] = ({}, {})
    for moves, found in zip((plan, program), sides, strict=True):
        for key, move in moves:
            found.setdefault(key, []).append(move)
    rows = (
        ComparedCollective(
            what=key.what,
            when=key.when,
            axes=key.axes,
            plan=CollectiveTraffic.of(sides[0][key]) if key in sides[0] else None,
            program=CollectiveTraffic.of(sides[1][key]) if key in sides[1] else None,
        )
        for key in dict.fromkeys((*sides[0], *sides[1]))
    )
    return tuple(sorted(rows, key=lambda row: -max(row.wire_bytes)))


def same_mode_share(rows: Iterable[ComparedCollective]) -> float:
    """Return the share of the collectives' bytes that are in the same mode on both sides.

    A row is a weight or a tensor, its pass and its axes. With `P(row)` and `Q(row)` the bytes on
    the wire of plan and program in a step, and `p(row, mode)` and `q(row, mode)` their fractions in
    a mode (`sync`, `async`, `ring`):

        share = sum over rows of (P + Q) x (sum over modes of min(p, q)) / sum over rows of (P + Q)

    So a byte counts if the other side moves the same tensor, in the same pass, over the same axes
    and in the same mode, by whatever kind of collective; a row that one side lacks counts as
    different. 1 if nothing is moved.
    """
    return _same_share((row, "modes") for row in rows)


def same_algorithm_share(rows: Iterable[ComparedCollective]) -> float:
    """Return the share of the collectives' bytes that take the same route on both sides.

    As `same_mode_share`, with algorithms in place of modes: the kind that a collective is carried
    out as, and its route over the torus in words (`all-gather, one ring of 16 through x,y`). Two
    rings of permutes through the same chips are the same algorithm.
    """
    return _same_share((row, "algorithms") for row in rows)


def _same_share(rows: Iterable[tuple[ComparedCollective, str]]) -> float:
    same = total = 0.0
    for row, by in rows:
        weight = sum(row.wire_bytes)
        total += weight
        if row.plan and row.program:
            same += weight * _overlap(getattr(row.plan, by), getattr(row.program, by))
    return same / total if total else 1.0


def _overlap(first: Shares, second: Shares) -> float:
    """Return the sum of the lesser fractions of two distributions; 1 if they are equal."""
    sums = sum(first.values()), sum(second.values())
    if not all(sums):
        return float(sums[0] == sums[1])
    return sum(min(first[k] / sums[0], second[k] / sums[1]) for k in first if k in second)
