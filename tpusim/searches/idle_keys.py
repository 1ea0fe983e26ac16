"""The keys of a plan that change nothing, so that plans that differ in them alone count once."""

from collections.abc import Collection, Iterator, Set
from functools import cached_property
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.graph import Attention, Graph, Remat, walk
from tpusim.lowering import check_switches
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import forward_graph, planned_graph
from tpusim.plan import PLAN_KEYS, STAGE_AXES, Axes, Plan, Sharding, Training, axes_of

PlanField = tuple[str, str]
"""Group and field of a key, as `PLAN_KEYS` has them."""


def _fields(group: str) -> tuple[PlanField, ...]:
    return tuple(entry for entry in PLAN_KEYS.table.values() if entry[0] == group)


_SAVED = {("remat", "policy"), ("remat", "save")}
_PIPELINE, _CONTEXT = _fields("pipeline"), _fields("context")

_SUMS = (("", "gradient_reduction"), ("dtypes", "accumulator"))

FOLLOWING = frozenset((*_PIPELINE, *_CONTEXT, *_SUMS, ("optimizer", "axes"), *_SAVED))
"""Fields that change something on some meshes, or with several microbatches, alone."""


def idle_fields(
    sharding: Sharding, training: Training, active: Set[str], several: bool
) -> Iterator[PlanField]:
    """Yield fields of a plan that change nothing on meshes of some axes, whatever the model is.

    active: axes that are larger than one.
    several: there are several microbatches.
    """
    staged = any(axis in active for axis in STAGE_AXES)
    if not staged:
        yield from _PIPELINE
    if not several:
        yield from _SUMS[: 1 if staged else 2]
    if training.optimizer.name == "sgd":
        yield from (("dtypes", "second_moment"), ("optimizer", "offload"))
    if training.remat.policy == "none" and not training.remat.unrolled:
        yield "remat", "save"
    if not sharding.experts.skew:
        yield "experts", "seed"
    if sharding.experts.capacity_factor:
        yield "experts", "tiles"
    ruled = {axis for rule in sharding.rules.values() for axis in axes_of(rule)}
    unsharded = not sharding.annotate and ({"context"} | ruled).isdisjoint(active)
    if unsharded and isinstance(sharding.context.exchange, str):
        yield from _CONTEXT


def own_values(
    plan: Plan,
    fields: Collection[PlanField],
    active: Set[str],
    several: bool,
    keys: "ModelKeys | None",
) -> Iterator[Any]:
    """Yield what tells a plan from others that differ in some fields, on meshes of some axes.

    keys: of the model, if it is known.
    """
    left = set(fields) - set(idle_fields(plan.sharding, plan.training, active, several))
    if keys is not None:
        left -= keys.idle
        if left & _SAVED and active.isdisjoint(STAGE_AXES):
            left -= _SAVED
            yield keys.remat(plan.remat)
    for group, name in fields:
        value = getattr(getattr(plan, group) if group else plan, name)
        match group, name:
            case each if each not in left:
                yield None
            case "pipeline", "schedule":
                yield plan.pipeline.active_schedule(stages=2)
            case "optimizer", "axes":
                yield tuple(axis for axis in value if axis in active)
            case "dtypes", dtype if dtype != "noise":
                yield plan.dtypes.of(dtype)
            case _:
                yield value


def axes_in(key: str, value: Any) -> Axes:
    """Return the axes that a value of a key names."""
    match PLAN_KEYS.field_of(key):
        case ("optimizer", "axes"):
            rules = [value]
        case ("", "rules"):
            rules = list(value.values())
        case ("", "annotate"):
            rules = [rule for given in value.values() for rule in given]
        case _:
            rules = []
    return tuple(axis for rule in rules for axis in axes_of(rule))


class ModelKeys:
    """What a model makes of the keys of plans that have these axes.

    base: of the plans.
    """

    def __init__(self, model: Architecture, base: Plan, axes: Collection[str]) -> None:
        plain = {"vocab_tiles": 1, "vocab_blocks": 1, "context_exchange": "gather"}
        self.model = model
        self.base = base.replace(mesh=dict.fromkeys(axes, 1), microbatches=1, **plain)
        self.known: dict[Remat, Remat] = {}
        self.graphs: list[tuple[Graph, Remat]] = []

    @cached_property
    def _graph(self) -> Graph | None:
        """The forward pass; None if the base has none, which other values may put right."""
        try:
            return forward_graph(self.model, self.base)
        except PlanError:
            return None

    @property
    def idle(self) -> frozenset[PlanField]:
        """Fields that change nothing in this model."""
        if self._graph is None or "expert" in self._graph.sizes:
            return frozenset()
        return frozenset({("experts", "exchange"), ("experts", "tiles")})

    @property
    def has_no_kernel(self) -> bool:
        """True if nothing in this model is fused attention."""
        graph = self._graph
        return graph is not None and not any(isinstance(o, Attention) for o, _ in walk(graph.ops))

    def check_names(self, key: str, value: Any) -> None:
        """Raise PlanError for a value of a key that names what the model or its lowering lacks."""
        if PLAN_KEYS.field_of(key) in (("remat", "save"), ("remat", "offload")):
            bare = self.base.replace(save=(), offload=())
            planned_graph(self.model, bare)
            planned_graph(self.model, bare.replace(**{key: value}))
        if PLAN_KEYS.field_of(key) == ("compiler", "without_passes"):
            check_switches(value)

    def remat(self, remat: Remat) -> Remat:
        """Return the first that was asked for of the policies that save what this one does."""
        if remat not in self.known:
            self.known[remat] = self._first(remat)
        return self.known[remat]

    def _first(self, remat: Remat) -> Remat:
        try:
            graph = planned_graph(self.model, self.base.replace(remat=remat))
        except PlanError:
            return remat
        for known, other in self.graphs:
            alike = (remat.offload, remat.scan_layers) == (other.offload, other.scan_layers)
            if alike and known == graph:
                return other
        self.graphs.append((graph, remat))
        return remat
