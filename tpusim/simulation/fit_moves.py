"""The changes of a plan that may make it fit: rows of options, the weakest of each first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tpusim.base.divisors import divisors
from tpusim.graph import LAYER_IN, POLICIES, Attention, Scan, walk
from tpusim.hardware import DCN_PREFIX
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import STAGE_AXES, Experts, Plan
from tpusim.results import PlanResult
from tpusim.results.unused_keys import KeyEffects
from tpusim.results.ways_to_fit import WayKind

EXPERT_BUFFERS = (2.0, 1.5, 1.25)
"""Rows over the mean; the runs of MaxText's own tests and recipes have 1.25 to 2."""

CAPACITIES = (1.5, 1.25, 1.0)
PARTS = (2, 4, 8, 16)
"""Factors by which the loss, and an axis of the mesh, may be cut further."""

FEWER_TOKENS = "tokens beyond it are dropped"
COMMON_AXES = ("fsdp", "tensor")
"""Axes that a mesh may get, as the default rules know them."""


class Option(NamedTuple):
    """Keys of a plan with other values.

    what: the change in words.
    """

    what: str
    keys: Mapping[str, Any]


class Move(NamedTuple):
    """A row of options, each of which frees more than the one before.

    name: the same for all plans, so that a move is made once.
    """

    name: str
    kind: WayKind
    options: tuple[Option, ...]


REMAT_MOVES = ("saves", "remat")
"""The moves that save less for the backward pass."""


def smaller_buffers(experts: Experts) -> Iterator[Option]:
    """Yield smaller buffers of experts that drop nothing, the largest first."""
    for size in () if experts.capacity_factor else EXPERT_BUFFERS:
        if experts.buffer == 0 or size < experts.buffer:
            what = f"expert buffers of {size:g} times the mean rows"
            yield Option(what, {"expert_buffer": size})


def names_back(before: PlanResult, after: PlanResult) -> tuple[str, ...]:
    """Return what a layer saved before and no longer does, as `save` takes it.

    Of `none`, which saves residuals that have no name of their own, it is what kernels and matmuls
    with a weight make.
    """
    model, plan = before.model, before.plan
    named = plan.replace(remat="minimal") if plan.remat.policy == "none" else plan
    found = dict.fromkeys([*saved_names(model, named), *saveable_names(model, plan)])
    gone = set(saved_names(model, plan)) - set(saved_names(model, after.plan))
    kept = set(saved_names(model, after.plan))
    return tuple(name for name in found if name in gone or (named is not plan and name not in kept))


def saveable_names(model: Architecture, plan: Plan) -> tuple[str, ...]:
    """Return what a layer may save: the results of matmuls with a weight, and those of kernels."""
    named = plan.replace(remat="minimal", save=(), offload=())
    return tuple(dict.fromkeys([*saved_names(model, named), *kernel_results(model, plan)]))


def kernel_results(model: Architecture, plan: Plan) -> tuple[str, ...]:
    """Return the names of what attention kernels make, which no policy of matmuls saves."""
    names = (
        tensor.short
        for op, _ in walk(planned_graph(model, plan).ops)
        if isinstance(op, Attention) and not op.backward
        for tensor in op.outputs
    )
    return tuple(dict.fromkeys(names))


def saved_names(model: Architecture, plan: Plan) -> Iterator[str]:
    """Yield the short names of what a plan's layers save for the backward pass."""
    for op in planned_graph(model, plan).ops:
        if isinstance(op, Scan):
            yield from (tensor.short for tensor in op.saves)


def saving(plan: Plan, names: Sequence[str]) -> Move:
    """Return the move that saves some names besides those that a plan saves."""
    what = f"{', '.join(names)} saved"
    return Move("names", WayKind.TRAINING, (Option(what, {"save": [*plan.remat.save, *names]}),))


@dataclass(frozen=True)
class PlanMoves:
    """The moves of a plan."""

    model: Architecture
    plan: Plan

    def all(self, kinds: Iterable[WayKind]) -> Iterator[Move]:
        """Yield the moves of some kinds that have an option."""
        makers = {
            WayKind.TRAINING: self._training,
            WayKind.HOST: self._host,
            WayKind.NUMERICS: self._numerics,
            WayKind.MESH: self._meshes,
        }
        for kind in sorted(kinds):
            for name, options in makers[kind]():
                if found := tuple(options):
                    yield Move(name, kind, found)

    @cached_property
    def _effects(self) -> KeyEffects:
        return KeyEffects(self.model, self.plan)

    def _reads(self, key: str) -> bool:
        return self._effects.reads(key)

    def _training(self) -> Iterator[tuple[str, Iterator[Option]]]:
        yield "labels", self._labels()
        yield "scan", self._scan()
        yield "loss", self._loss()
        yield "microbatches", self._microbatches()
        yield "buffer", self._buffers()
        yield "saves", self._saves()
        yield "remat", self._policies()
        yield "updates", self._updates()
        yield "reduction", self._reduction()

    def _host(self) -> Iterator[tuple[str, Iterator[Option]]]:
        yield "state", self._state()
        yield "offload", self._offloads()

    def _labels(self) -> Iterator[Option]:
        if self.plan.loss_labels != "mask" and self._reads("loss_labels"):
            yield Option("labels by a mask", {"loss_labels": "mask"})

    def _scan(self) -> Iterator[Option]:
        if self.plan.remat.unrolled and self._reads("scan_layers"):
            yield Option("layers in a scan", {"scan_layers": True})

    def _loss(self) -> Iterator[Option]:
        if not self.model.reads_text or self.plan.vocab_blocks > 1:
            return
        for parts in PARTS:
            tiles = parts * self.plan.vocab_tiles
            yield Option(f"the loss in {tiles} tiles", {"vocab_tiles": tiles})

    def _microbatches(self) -> Iterator[Option]:
        now, last = self.plan.microbatches, 1
        for parts in divisors(self.plan.microbatch):
            if parts >= 2 * last:
                last = parts
                yield Option(f"{now * parts} microbatches", {"microbatches": now * parts})

    def _buffers(self) -> Iterator[Option]:
        if self._reads("expert_buffer"):
            yield from smaller_buffers(self.plan.experts)

    def _saves(self) -> Iterator[Option]:
        if saved := self.plan.remat.save:
            yield Option(f"{', '.join(saved)} not saved", {"save": []})

    def _policies(self) -> Iterator[Option]:
        now = POLICIES.index(self.plan.remat.policy)
        for policy in reversed(POLICIES[:now]) if self._reads("remat") else ():
            yield Option(f"remat {policy}", {"remat": policy})

    def _updates(self) -> Iterator[Option]:
        plan = self.plan
        axes = [axis for axis in plan.active_axes if axis not in STAGE_AXES]
        if "data" in axes and not plan.optimizer.axes:
            yield Option("weights updated in parts over data", {"weight_update_axes": ["data"]})

    def _reduction(self) -> Iterator[Option]:
        if self.plan.reduces_once:
            what = "gradients reduced per microbatch"
            yield Option(what, {"gradient_reduction": "per-microbatch"})

    def _state(self) -> Iterator[Option]:
        if self._reads("offload_optimizer") and not self.plan.optimizer.offload:
            yield Option("the optimizer state on the host", {"offload_optimizer": True})

    def _offloads(self) -> Iterator[Option]:
        remat = self.plan.remat
        if not self._reads("remat"):
            return
        if remat.save:
            moved = [*remat.offload, *remat.save]
            what = f"{', '.join(remat.save)} on the host"
            yield Option(what, {"save": [], "offload": moved})
        if LAYER_IN not in remat.offload:
            moved = [*remat.offload, LAYER_IN]
            yield Option("the layers' inputs on the host", {"offload": moved})

    def _numerics(self) -> Iterator[tuple[str, Iterator[Option]]]:
        yield "gradients", self._narrow("gradients", "grad", "grad_dtype")
        yield "accumulators", self._narrow("accumulators", "accumulator", "accumulator_dtype")
        yield "logits", self._narrow("logits", "logits", "logits_dtype")
        yield "moments", self._narrow("moments", "moment", "moment_dtype")
        yield "capacity", self._capacities()
        yield "weights", self._narrow("weights", "param", "param_dtype")

    def _narrow(self, what: str, field: str, key: str) -> Iterator[Option]:
        if self.plan.dtypes.of(field) == "f32" and self._reads(key):
            yield Option(f"{what} in bf16", {key: "bf16"})

    def _capacities(self) -> Iterator[Option]:
        experts = self.plan.experts
        now = experts.capacity_factor
        if not self._effects.has_experts:
            return
        dropped = {"expert_buffer": 0.0} if experts.buffer else {}
        dropped |= {"expert_skew": 0.0} if experts.skew else {}
        for factor in CAPACITIES:
            if not now or factor < now:
                what = f"experts with {factor:g} times their share of slots ({FEWER_TOKENS})"
                yield Option(what, {"capacity_factor": factor, **dropped})

    def _meshes(self) -> Iterator[tuple[str, Iterator[Option]]]:
        mesh = self.plan.mesh
        axes = dict.fromkeys((*mesh, *COMMON_AXES))
        for taken in self.plan.active_axes:
            for given in axes:
                apart = taken.startswith(DCN_PREFIX) != given.startswith(DCN_PREFIX)
                if given != taken and not apart and given not in STAGE_AXES:
                    yield "mesh", self._moved(taken, given)

    def _moved(self, taken: str, given: str) -> Iterator[Option]:
        mesh, last = self.plan.mesh, 1
        for parts in divisors(mesh[taken]):
            if parts >= 2 * last:
                last = parts
                moved = dict(mesh) | {
                    taken: mesh[taken] // parts,
                    given: mesh.get(given, 1) * parts,
                }
                what = f"mesh {given}={moved[given]} and {taken}={moved[taken]}"
                yield Option(what, {"mesh": moved})
