"""From a model and a plan to a step: a placement turns it into one program, or one per stage."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.frames import ForwardFrame, TrainingFrame, asked_place, choices_of, sizes_of
from tpusim.graph import (
    Adapters,
    Graph,
    LayerRow,
    ModelPart,
    PlainMatmuls,
    Remat,
    Tiling,
    chunk_of_model,
    forward_pass,
    joint_of_model,
    layer_count,
    layer_row,
    part_of_model,
    split_part_of_model,
    training_step,
    with_repeated_keys,
    with_tiled_loss,
    with_trainable,
)
from tpusim.hardware import Placement, Slice
from tpusim.lowering import AskedPlace, BodyChoices, SharedLowerings, check_switches
from tpusim.lowering.operand_dtypes import tensor_dtype
from tpusim.models import Architecture, ExpertRouting, GraphChoices, LossForm
from tpusim.partition import (
    PartitionedGraph,
    ShardingRules,
    WeightUpdates,
    check_batch,
    distinct_drops,
    kernel_copies,
    loss_parts,
    partition_graph,
    partition_parts,
    resolve_rules,
)
from tpusim.pipeline import (
    CircularLoop,
    CircularParts,
    CircularShape,
    circular_program,
    schedule_of,
    stage_programs,
)
from tpusim.plan import (
    ALL_TO_ALL,
    CIRCULAR,
    DEFAULT_RULES,
    Plan,
    Training,
    axes_of,
    edge_plan,
    inner_plan,
    part_bounds,
    stage_plan,
)
from tpusim.program import Program

Tiles: TypeAlias = tuple[tuple[str, int], ...]
"""The number of parts into which each dimension of the loss is cut."""

Programs: TypeAlias = tuple[Program, ...]
"""The program of one device; of one of each stage where there is a pipeline."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step before its mesh is placed on the torus.

    graph: forward and backward pass of one microbatch.
    dropped: see `PartitionedGraph`.
    lower: from a place to the step's programs.
    known: the programs of the placements so far.
    """

    plan: Plan
    pod: Slice
    graph: Graph
    dropped: tuple[tuple[str, int, str, int], ...]
    lower: Callable[[AskedPlace], Programs]
    known: SharedLowerings[Programs] = field(default_factory=SharedLowerings)

    def programs_on(self, placement: Placement) -> Programs:
        """Return the programs on a placement; one object for all that the lowering sees alike."""
        return self.known.on(asked_place(self.pod, placement, choices_of(self.plan)), self.lower)


def planned_step(model: Architecture, plan: Plan, pod: Slice) -> PlannedStep:
    """Return the training step of `model` under `plan` on `pod`.

    Raise PlanError for an impossible plan.
    """
    plan.check_together()
    check_switches(plan.compiler.without_passes)
    plan = plan.as_compiled
    graph = planned_graph(model, plan)
    if not plan.active_schedule:
        partitioned = partitioned_graph(graph, plan)
        return PlannedStep(
            plan,
            pod,
            graph,
            distinct_drops(partitioned.dropped),
            lambda place: (TrainingFrame.of(graph, plan, place).program(graph, partitioned),),
        )
    _check_stateless(graph)
    inner = stage_plan(plan)
    bounds = part_bounds(plan, layer_count(_forward(model, _graph_key(model, inner))), model.name)
    if plan.active_schedule == CIRCULAR:
        return _circular(model, plan, pod, graph, bounds)
    cut = part_of_model if not schedule_of(plan).splits else split_part_of_model
    parts = _parts(model, _graph_key(model, inner), bounds, cut)
    partitioned_parts = _partitioned_parts(graph, inner, parts)
    return PlannedStep(
        plan,
        pod,
        graph,
        _dropped(partitioned_parts),
        lambda place: stage_programs(model.name, parts, partitioned_parts, plan, place),
    )


def _check_stateless(graph: Graph) -> None:
    """Raise PlanError for states, which no program of a pipeline's stages holds."""
    if graph.states:
        named = ", ".join(state.tensor.name for state in graph.states)
        raise PlanError(
            f"{graph.name} has state ({named}), which the stages of a pipeline do not hold; write "
            "stage = 1, and give its devices to another axis"
        )


def _circular(
    model: Architecture, plan: Plan, pod: Slice, graph: Graph, bounds: tuple[int, ...]
) -> PlannedStep:
    """Return the step of a circular pipeline; `graph` is of one microbatch."""
    inner, edges = stage_plan(plan), edge_plan(plan)
    key, row = _graph_key(model, edges), layer_row(_forward(model, _graph_key(model, edges)))
    chunks = _parts(model, _graph_key(model, inner), bounds, chunk_of_model)
    loops = _rounds(model.name, row, chunks, bounds, plan.stages)
    shapes = [CircularShape(plan.stages, plan.microbatches, len(rounds)) for rounds in loops]
    for shape in shapes:
        shape.check(plan.pipeline.virtual_stages)
    firsts = [chunks[rounds[0]] for rounds in loops]
    layers = _partitioned_parts(graph, inner, firsts)
    joints = _joints(model, key, (*(row.begins_at(bounds[r[0]]) for r in loops), len(row.scans)))
    standing = [joint for joint in joints if joint]
    outer = _partitioned_parts(_whole(model, key), edges, standing)
    placed = dict(zip(map(id, standing), outer, strict=True))
    pieces = CircularParts(
        tuple(
            CircularLoop(
                (chunk, partitioned),
                shape,
                row.across(bounds[rounds[0]], bounds[rounds[-1] + plan.stages]),
            )
            for chunk, partitioned, shape, rounds in zip(firsts, layers, shapes, loops, strict=True)
        ),
        tuple((joint, placed[id(joint)]) if joint else None for joint in joints),
    )
    return PlannedStep(
        plan,
        pod,
        graph,
        _dropped([*layers, *outer]),
        lambda place: (circular_program(model.name, pieces, plan, place),),
    )


def _rounds(
    name: str, row: LayerRow, chunks: Sequence[ModelPart], bounds: Sequence[int], stages: int
) -> list[list[int]]:
    """Return, for each loop, the first part of each round: rounds that are alike are one loop.

    Raise PlanError for a round whose parts are not alike.
    """
    loops: list[list[int]] = []
    for start in range(0, len(chunks), stages):
        chunk = chunks[start]
        if any(other is not chunk for other in chunks[start : start + stages]):
            raise PlanError(
                f"the layers of {name} are not alike from one part of "
                f"{bounds[start + 1] - bounds[start]} to the next, but one program runs all stages "
                "of a circular pipeline; choose virtual_stages and stage_layers by which the "
                f"{stages} parts of a round are alike, or another schedule"
            )
        begun = row.begins_at(bounds[start])
        apart = begun is not None and row.joints[begun]
        if loops and chunks[loops[-1][0]] is chunk and not apart:
            loops[-1].append(start)
        else:
            loops.append([start])
    return loops


def _dropped(parts: Iterable[PartitionedGraph]) -> tuple[tuple[str, int, str, int], ...]:
    """Return what the distinct parts dropped."""
    found = {id(partitioned): partitioned for partitioned in parts}.values()
    return distinct_drops(drop for partitioned in found for drop in partitioned.dropped)


def checked_rules(plan: Plan, graph: Graph) -> ShardingRules:
    """Return the rules in force for the graph of one microbatch.

    Raise PlanError for rules that the graph does not admit, and a batch that does not divide.
    """
    rules = resolve_rules(plan.sharding, graph, plan.compiler.style)
    check_batch(plan.sharding, rules, graph, plan.global_batch, plan.microbatches)
    return rules


def partitioned_graph(graph: Graph, plan: Plan) -> PartitionedGraph:
    """Return the partitioned graph of a training step. Raise PlanError as `checked_rules` does."""
    return partition_graph(
        graph, plan.sharding, checked_rules(plan, graph), _updates(plan.training)
    )


def _partitioned_parts(
    graph: Graph, plan: Plan, parts: Sequence[ModelPart]
) -> list[PartitionedGraph]:
    rules = checked_rules(plan, graph)
    return partition_parts(graph, plan.sharding, rules, _updates(plan.training), parts)


def _updates(training: Training) -> WeightUpdates:
    return WeightUpdates(tuple(training.optimizer.axes), training.reduces_once)


def planned_graph(model: Architecture, plan: Plan) -> Graph:
    """Return the forward and backward pass of one microbatch of `plan`."""
    return _whole(model, _graph_key(model, inner_plan(plan)))


def forward_step(model: Architecture, plan: Plan, pod: Slice) -> PlannedStep:
    """Return the forward pass of `model` alone, without its loss, on a batch of one microbatch.

    Of the training of a plan its batch counts, its loss, saved tensors, optimizer and loop do not.
    Raise PlanError for an impossible plan, and for one with a pipeline.
    """
    plan.check_together()
    check_switches(plan.compiler.without_passes)
    if plan.active_schedule:
        raise PlanError(
            f"the mesh has {plan.stages} stages, and a forward pass alone has no pipeline; write "
            "stage = 1, and give its devices to another axis"
        )
    whole = plan.replace(vocab_tiles=1, vocab_blocks=1)  # how the loss is cut does not count
    graph = forward_pass(_forward(model, _graph_key(model, whole)))
    rules = checked_rules(plan, graph)
    partitioned = partition_graph(graph, plan.sharding, rules)
    choices = BodyChoices(plan.sharding, plan.numerics, plan.compiler)
    sizes = sizes_of(graph, choices)
    return PlannedStep(
        plan,
        pod,
        graph,
        distinct_drops(partitioned.dropped),
        lambda place: (ForwardFrame(choices, sizes, place).program(graph, partitioned),),
    )


def forward_graph(model: Architecture, plan: Plan) -> Graph:
    """Return the forward pass and the loss of one microbatch of a plan without a pipeline."""
    key = _graph_key(model, plan)
    return _tiling(key)(_forward(model, key))


class _GraphKey(NamedTuple):
    """The key of a graph besides its model.

    tiles, tiles_apart: tiles of each dimension of the loss, see `with_tiled_loss`.
    adapters, trainable: the weights that are trained, see `with_trainable`.
    copies: number to which K/V heads are repeated before a kernel, see `with_repeated_keys`.
    """

    batch: int
    seq_len: int
    remat: Remat
    choices: GraphChoices
    adapters: Adapters
    trainable: tuple[str, ...]
    tiles: Tiles = ()
    tiles_apart: bool = False
    copies: int = 0


def _graph_key(model: Architecture, plan: Plan) -> _GraphKey:
    """Return the key of the graph of one microbatch."""
    routing = ExpertRouting(
        capacity_factor=plan.experts.capacity_factor,
        group=plan.experts.group,
        dispatch=plan.experts.dispatch,
        exchange=plan.experts.exchange if _divides_experts(plan) else ALL_TO_ALL,
    )
    choices = GraphChoices(
        logits_dtype=tensor_dtype(plan.dtypes.of("logits"), plan.dtypes),
        routing=routing,
        loss=LossForm(blocks=plan.vocab_blocks, labels=plan.loss_labels),
    )
    trained = plan.adapters, tuple(plan.trainable)
    key = _GraphKey(plan.microbatch, plan.seq_len, _policy(plan), choices, *trained)
    if plan.vocab_tiles == 1 and not plan.context.exchanges_heads:
        return key
    forward, axes = _forward(model, key), plan.active_axes
    rules = checked_rules(plan, forward)
    return key._replace(
        tiles=tuple(loss_parts(plan.vocab_tiles, forward, rules, axes).items()),
        tiles_apart=plan.compiler.style != "maxtext",
        copies=kernel_copies(forward, rules, axes),
    )


_OF_LAYERS = ("embed", "mlp", "heads", "kv_heads", "seq")
"""Dimensions of which a layer's matmuls gather what is sharded."""


def _policy(plan: Plan) -> Remat:
    """Return the policy of a plan; of layers in which nothing is moved, `PlainMatmuls`."""
    remat = plan.remat
    moved = _divides(plan, lambda key: key.removeprefix("act_") in _OF_LAYERS)
    in_parts = any(axis in plan.active_axes for axis in plan.optimizer.axes)
    if not remat.left_to_compiler or moved or in_parts:
        return remat
    return PlainMatmuls(remat.policy, remat.save, remat.offload, remat.scan_layers)


def _divides(plan: Plan, wanted: Callable[[str], bool]) -> bool:
    """Return True if some axis may divide the dimensions of the rules that are wanted."""
    rules = {**DEFAULT_RULES, **plan.rules}
    own = (axes_of(rule) for key, rule in rules.items() if wanted(key))
    return any(axis in plan.active_axes for axes in own for axis in axes)


def _divides_experts(plan: Plan) -> bool:
    """Return True if some axis may divide experts: where each device has all, nothing crosses."""
    return _divides(plan, lambda key: key.endswith("act_expert"))


def _forward(model: Architecture, key: _GraphKey) -> Graph:
    forward = model.graph(
        batch=key.batch,
        seq_len=key.seq_len,
        choices=key.choices,
    )
    forward = with_trainable(forward, key.adapters, key.trainable)
    return with_repeated_keys(forward, key.copies) if key.copies else forward


@lru_cache(maxsize=32)
def _whole(model: Architecture, key: _GraphKey) -> Graph:
    """Return forward and backward pass, cached for the next plan with the same key."""
    forward = _tiling(key)(_forward(model, key))
    return replace(_trained(replace(forward, dims=()), key.remat), dims=forward.dims)


_trained = lru_cache(maxsize=32)(training_step)
"""Forward and backward pass of a graph without sizes, which no gradient depends on."""


class _Cut(Protocol):
    """A way to take layers out of a model, such as `part_of_model`."""

    def __call__(
        self, graph: Graph, first: int, last: int, remat: Remat, *, tiled: Tiling
    ) -> ModelPart: ...


@lru_cache(maxsize=32)
def _parts(
    model: Architecture, key: _GraphKey, bounds: tuple[int, ...], cut: _Cut
) -> tuple[ModelPart, ...]:
    """Return the parts of a model between layers, equal ones as one object, cached."""
    forward = _forward(model, key)
    known: list[ModelPart] = []
    kinds: list[int] = []
    for first, last in pairwise(bounds):
        part = cut(forward, first, last, key.remat, tiled=_tiling(key))
        if part not in known:
            known.append(part)
        kinds.append(known.index(part))
    labels = Counter(part.label for part in known)
    named = [
        replace(part, label=f"{part.label} (kind {number})") if labels[part.label] > 1 else part
        for number, part in enumerate(known, start=1)
    ]
    return tuple(named[kind] for kind in kinds)


@lru_cache(maxsize=32)
def _joints(
    model: Architecture, key: _GraphKey, numbers: tuple[int | None, ...]
) -> tuple[ModelPart | None, ...]:
    """Return what stands between the layers of a model, cached; None where nothing does."""
    forward = _forward(model, key)
    return tuple(
        None if number is None else joint_of_model(forward, number, key.remat, tiled=_tiling(key))
        for number in numbers
    )


def _tiling(key: _GraphKey) -> Tiling:
    return lambda graph: with_tiled_loss(graph, dict(key.tiles), key.tiles_apart)
