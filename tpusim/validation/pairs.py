"""Pairs of runs that differ in one thing: their ratio cancels what both share, as software."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from tpusim.validation.measured import Measured
from tpusim.validation.outcome import Outcome

SAME = (
    *("model", "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab"),
    *("mlp_matrices", "experts", "capacity_factor", "expert_exchange"),
    *("causal", "seq_len", "framework"),
)
THINGS = ("num_slices", "dtype", "topology", "chip")
ALSO = ("remat", "save", "offload", "vocab_tiles", "optimizer", "attention")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs, the ratio of their times (second over first), and what differs.

    thing: the one column that differs. also: further columns that do, of those that need not;
    a pair without any is the sharpest.
    """

    first: str
    second: str
    thing: str
    change: str
    measured_ratio: float
    predicted_ratio: float | None
    also: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Signed error of the predicted ratio."""
        if self.predicted_ratio is None:
            return None
        return self.predicted_ratio / self.measured_ratio - 1


def pairs(outcomes: Sequence[Outcome]) -> tuple[Pair, ...]:
    """All pairs of runs of one model of which exactly one of `THINGS` differs.

    The mesh and the global batch follow the number of chips and are compared only in what they
    are a chip; `also` names them where that differs.
    """
    return tuple(pair for a, b in combinations(outcomes, 2) for pair in _pair(a, b))


def pair_document(pair: Pair) -> dict[str, Any]:
    """A pair as plain data."""
    return asdict(pair) | {"also": list(pair.also), "error": pair.error}


def _pair(a: Outcome, b: Outcome) -> Iterator[Pair]:
    one, other = a.run, b.run
    if _differing(one, other, SAME):
        return
    things = _differing(one, other, THINGS)
    if len(things) != 1:
        return
    ratio = b.predicted_s / a.predicted_s if a.predicted_s and b.predicted_s else None
    change = f"{getattr(one, things[0])} to {getattr(other, things[0])}"
    yield Pair(one.id, other.id, things[0], change, other.step_s / one.step_s, ratio,
               tuple(_also(one, other, things[0])))  # fmt: skip


def _differing(one: Measured, other: Measured, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if getattr(one, name) != getattr(other, name)]


def _also(one: Measured, other: Measured, thing: str) -> Iterator[str]:
    yield from _differing(one, other, ALSO)
    if _axes(one) != _axes(other) and thing not in ("num_slices", "topology"):
        yield "mesh"
    if one.global_batch * other.num_chips != other.global_batch * one.num_chips:
        yield "batch a chip"


def _axes(run: Measured) -> list[str]:
    return sorted(run.mesh.split(";"))
