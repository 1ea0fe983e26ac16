"""Pairs of runs that differ in one thing: the ratio cancels what both share, such as software."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.outcome import RunOutcome
from tpusim.validation.remarks import remarks_of

EQUAL_COLUMNS = (
    *("model", "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab"),
    *("mlp_matrices", "experts", "capacity_factor", "expert_exchange"),
    *("causal", "seq_len", "framework"),
)
PAIRED_COLUMNS = ("num_slices", "dtype", "topology", "chip")
SECONDARY_COLUMNS = ("remat", "save", "offload", "vocab_tiles", "optimizer", "attention")


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs, the ratio of their times (second over first), and what differs.

    thing: the one of PAIRED_COLUMNS that differs.
    also: other columns that differ; a pair without any is the sharpest.
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
        """Signed relative error of the predicted ratio."""
        if self.predicted_ratio is None:
            return None
        return self.predicted_ratio / self.measured_ratio - 1


def run_pairs(outcomes: Sequence[RunOutcome]) -> tuple[RunPair, ...]:
    """Return all pairs of runs of one model that differ in exactly one of PAIRED_COLUMNS.

    The mesh and the global batch follow the number of chips, so only their values per chip are
    compared; `also` names them if those differ.
    """
    return tuple(pair for a, b in combinations(outcomes, 2) for pair in _pair(a, b))


def pair_document(pair: RunPair) -> dict[str, Any]:
    """Return a pair as plain data."""
    return asdict(pair) | {"also": list(pair.also), "error": pair.error}


def _pair(a: RunOutcome, b: RunOutcome) -> Iterator[RunPair]:
    one, other = a.run, b.run
    things = _differing(one, other, PAIRED_COLUMNS)
    if len(things) != 1 or _differing(one, other, EQUAL_COLUMNS):
        return
    (thing,) = things
    yield RunPair(
        first=one.id,
        second=other.id,
        thing=thing,
        change=f"{getattr(one, thing)} to {getattr(other, thing)}",
        measured_ratio=other.step_s / one.step_s,
        predicted_ratio=b.predicted_s / a.predicted_s if a.predicted_s and b.predicted_s else None,
        also=tuple(_secondary_differences(one, other, thing)),
    )


def _differing(one: MeasuredRun, other: MeasuredRun, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if getattr(one, name) != getattr(other, name)]


def _differing_remarks(one: MeasuredRun, other: MeasuredRun) -> Iterator[str]:
    """Yield the fields of model and plan that the runs' notes set differently."""
    fields, others = (
        {**remarks.model, **remarks.plan} for remarks in map(remarks_of, (one, other))
    )
    unequal = [key for key in {**fields, **others} if fields.get(key) != others.get(key)]
    yield from (key for key in unequal if key not in ("vocab", *SECONDARY_COLUMNS))


def _secondary_differences(one: MeasuredRun, other: MeasuredRun, thing: str) -> Iterator[str]:
    yield from _differing(one, other, SECONDARY_COLUMNS)
    yield from _differing_remarks(one, other)
    meshes_differ = sorted(one.mesh.split(";")) != sorted(other.mesh.split(";"))
    if meshes_differ and thing not in ("num_slices", "topology"):
        yield "mesh"
    if one.global_batch * other.num_chips != other.global_batch * one.num_chips:
        yield "batch a chip"
