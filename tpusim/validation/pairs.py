"""Groups of runs that differ in one decision, and their pairs.

The ratio of two such runs cancels what both share, such as software, and their order is what
somebody who decides between them needs to know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import combinations
from typing import Any

from tpusim.base.units import format_mesh
from tpusim.validation.outcome import RunOutcome

NOISE = 0.03
"""Measured runs that differ by a smaller fraction may as well be in the other order: releases of
the same software differ by 3.8 % in the median (docs/accuracy.md)."""

MESH = ("mesh", "rules", "annotate", "placement")
BATCH = ("global_batch", "microbatches")
REMAT = ("remat", "save", "offload")
TILES = (
    *("expert_tiles", "vocab_tiles", "vocab_blocks"),
    *("attention_block", "attention_block_backward", "attention_backward"),
)
DTYPES = (
    *("matmul_dtype", "matmul_dtype_dx", "matmul_dtype_dw", "gather_dtype", "quantisation_noise"),
    *("param_dtype", "moment_dtype", "second_moment_dtype", "grad_dtype", "accumulator_dtype"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decides.

    keys: the keys of a run file that say it, the one to tell first.
    follows: keys that may differ with them.
    """

    keys: tuple[str, ...]
    follows: tuple[str, ...] = ()


DECISIONS: Mapping[str, Decision] = {
    "slices": Decision(("num_slices",), MESH),
    "dtype": Decision(DTYPES),
    "topology": Decision(("topology",), MESH),
    "chip": Decision(
        ("chip",), ("topology", *MESH, *BATCH, *REMAT, *TILES, "collective_matmul")
    ),
    "mesh": Decision(MESH),
    "exchange": Decision(("context_exchange", "expert_exchange"), TILES),
    "tiles": Decision(TILES),
    "remat": Decision(REMAT),
    "batch": Decision(BATCH),
}  # fmt: skip
"""The decisions by name. The mesh follows the number of chips, the blocks of kernels what an
exchange leaves them, and another chip has another recipe: it is compared at its own batch."""


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs that differ in one decision, and the ratio of their costs (second over first).

    The cost of a run is its chip-seconds per sequence: steps of runs on as many chips with the same
    batch have the same order.

    decision: the one of DECISIONS that differs.
    also: what only one source states, a key whose value the other leaves open or a fact that no key
        says; a pair without any is the sharpest. Keys of the decision are none of them.
    """

    first: str
    second: str
    decision: str
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

    @property
    def differs(self) -> bool:
        """True if the measured costs differ by more than NOISE, the smaller being the base."""
        return max(self.measured_ratio, 1 / self.measured_ratio) > 1 + NOISE

    @property
    def right(self) -> bool | None:
        """True if the predicted order is the measured one; None where a run is not predicted."""
        if self.predicted_ratio is None:
            return None
        return (self.predicted_ratio - 1) * (self.measured_ratio - 1) > 0


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ in one decision and in nothing else that a run file says.

    outcomes: from the fewest slices to the most.
    """

    decision: str
    outcomes: tuple[RunOutcome, ...]

    @property
    def pairs(self) -> tuple[RunPair, ...]:
        """The pairs of its runs that differ in the decision itself."""
        keys = DECISIONS[self.decision].keys
        facts = [(one, _facts(one)) for one in self.outcomes]
        return tuple(
            _pair(a, b, self.decision, f"{_told(of_a[key])} to {_told(of_b[key])}")
            for (a, of_a), (b, of_b) in combinations(facts, 2)
            if (key := next((key for key in keys if of_a[key] != of_b[key]), ""))
        )


def run_groups(outcomes: Sequence[RunOutcome]) -> tuple[RunGroup, ...]:
    """Return the groups that have a pair, by decision.

    Their runs are of one model, whatever it is called, by one framework, with sequences of one
    length.
    """
    known = [one for one in outcomes if one.run.given is not None]
    ordered = sorted(known, key=lambda one: _facts(one)["num_slices"])
    groups = (
        RunGroup(name, tuple(group))
        for name, decision in DECISIONS.items()
        for group in _alike(ordered, {*decision.keys, *decision.follows})
    )
    return tuple(group for group in groups if group.pairs)


def run_pairs(outcomes: Sequence[RunOutcome]) -> tuple[RunPair, ...]:
    """Return the pairs of all groups."""
    return tuple(pair for group in run_groups(outcomes) for pair in group.pairs)


def pair_document(pair: RunPair) -> dict[str, Any]:
    """Return a pair as plain data."""
    told = {"also": list(pair.also), "error": pair.error}
    return asdict(pair) | told | {"differs": pair.differs, "right": pair.right}


def cost(one: RunOutcome, step_s: float) -> float:
    """Return the chip-seconds per sequence of a run whose step takes `step_s` seconds.

    Of a model without sequences it is what its batch counts, such as images. Raise ValueError for
    a run that there cannot be.
    """
    given = one.run.given
    if given is None:
        raise ValueError(f"{one.run.id} is no run: {one.run.reason}")
    return step_s * given.pod.chips / given.plan.global_batch


def _alike(outcomes: Sequence[RunOutcome], without: set[str]) -> Iterator[list[RunOutcome]]:
    """Yield the runs with the same facts, but for some keys, together."""
    groups: list[tuple[dict[str, Any], list[RunOutcome]]] = []
    for one in outcomes:
        facts = {key: value for key, value in _facts(one).items() if key not in without}
        for others, group in groups:
            if facts == others:
                group.append(one)
                break
        else:
            groups.append((facts, [one]))
    yield from (group for _, group in groups if len(group) > 1)


def _facts(one: RunOutcome) -> dict[str, Any]:
    """Return what a run file says by key, with the batch of a chip as `global_batch`."""
    given = one.run.given
    if given is None:
        return {}
    pod, plan = given.pod, given.plan
    batch = {"global_batch": Fraction(plan.global_batch, pod.chips)}
    return {
        "framework": one.run.framework,
        "chip": pod.chip.name,
        "topology": str(pod.topology),
        "num_slices": pod.num_slices,
        "model": _dimensions(given.model),
        "other": (given.input, pod.dcn_oversubscription, pod.clock, pod.slow, pod.broken),
    } | {**plan.flat(), **plan.dtypes.matmuls, **batch}


def _dimensions(model: Any) -> tuple[Any, ...]:
    """Return the class of a model and its fields but the name, which sources choose freely."""
    values = [getattr(model, field.name) for field in fields(model) if field.name != "name"]
    return type(model), values


def _pair(a: RunOutcome, b: RunOutcome, decision: str, change: str) -> RunPair:
    predicted = None
    if a.predicted_s and b.predicted_s:
        predicted = cost(b, b.predicted_s) / cost(a, a.predicted_s)
    return RunPair(
        first=a.run.id,
        second=b.run.id,
        decision=decision,
        change=change,
        measured_ratio=cost(b, b.run.step_s) / cost(a, a.run.step_s),
        predicted_ratio=predicted,
        also=tuple(dict.fromkeys(_told_by_one(a, b, DECISIONS[decision]))),
    )


def _told_by_one(a: RunOutcome, b: RunOutcome, decision: Decision) -> Iterator[str]:
    """Yield what one of two sources states and the other does not: the runs may differ in it."""
    told, others = a.run.measured, b.run.measured
    keys = (key.partition(".")[2] for key in _of_one(told.assumed, others.assumed))
    compared = {*decision.keys, *decision.follows, *MESH, *BATCH, "topology"}
    yield from (key for key in keys if key not in compared)
    yield from _of_one(told.unmodelled, others.unmodelled)


def _of_one(some: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield what is in one of two lists only."""
    yield from (each for each in (*some, *others) if (each in some) != (each in others))


def _told(value: Any) -> str:
    """Return the value of a key as tables show it."""
    if isinstance(value, Mapping):
        return format_mesh(value)
    if isinstance(value, Fraction):
        return f"{float(value):g} a chip"
    if isinstance(value, tuple):
        return "x".join(map(str, value)) or "none"
    return str(value)
