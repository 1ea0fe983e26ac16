"""The collectives of a plan beside those of a program: bytes on the wire, modes and algorithms."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    def of(cls, moves: Sequence[CollectiveMove]) -> "CollectiveTraffic":
        """Return the sum of collectives."""

        def shares(of: Callable[[CollectiveMove], str]) -> Shares:
            found: defaultdict[str, float] = defaultdict(float)
            for move in moves:
                found[of(move)] += move.wire_bytes
            return dict(found)

        return cls(
            kinds=shares(lambda move: str(move.op.kind)),
            modes=shares(lambda move: str(move.mode)),
            algorithms=shares(lambda move: move.algorithm),
            exposed_s=sum((move.exposed_s for move in moves), 0.0),
            operations=tuple(dict.fromkeys(move.op.name for move in moves)),
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
    def sides(self) -> tuple[CollectiveTraffic | None, CollectiveTraffic | None]:
        """What the plan moves, and what the program does."""
        return self.plan, self.program

    @property
    def exposed_s(self) -> tuple[float, float]:
        """Seconds of waiting in the plan and in the program."""
        plan, program = (side.exposed_s if side else 0.0 for side in self.sides)
        return plan, program

    @property
    def wire_bytes(self) -> tuple[float, float]:
        """Bytes on the wire in the plan and in the program."""
        plan, program = (side.wire_bytes if side else 0.0 for side in self.sides)
        return plan, program


def _most(shares: Shares) -> str:
    return max(shares, key=lambda name: shares[name], default="")


def compared_collectives(
    plan: Iterable[KeyedMove], program: Iterable[KeyedMove]
) -> tuple[ComparedCollective, ...]:
    """Return the collectives of both sides by weight or tensor, pass and axes.

    Those with the most bytes on either side are first.
    """
    found: dict[MoveKey, tuple[list[CollectiveMove], list[CollectiveMove]]] = {}
    for at, moves in enumerate((plan, program)):
        for key, move in moves:
            found.setdefault(key, ([], []))[at].append(move)
    rows = (
        ComparedCollective(
            **key._asdict(),
            plan=CollectiveTraffic.of(planned) if planned else None,
            program=CollectiveTraffic.of(made) if made else None,
        )
        for key, (planned, made) in found.items()
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
    return _same_share(rows, "modes")


def same_algorithm_share(rows: Iterable[ComparedCollective]) -> float:
    """Return the share of the collectives' bytes that take the same route on both sides.

    As `same_mode_share`, with algorithms in place of modes: the kind that a collective is carried
    out as, and its route over the torus in words (`all-gather, one ring of 16 through x,y`). Two
    rings of permutes through the same chips are the same algorithm.
    """
    return _same_share(rows, "algorithms")


def _same_share(rows: Iterable[ComparedCollective], by: str) -> float:
    same = total = 0.0
    for row in rows:
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
