"""A model and a plan become a step that a placement turns into programs: one, or one a stage."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from tpusim.graph import (
    COMPUTE,
    Graph,
    Part,
    Remat,
    layer_count,
    part_of_model,
    training_step,
    with_tiled_loss,
)
from tpusim.hardware import Placement, Slice
from tpusim.models import Transformer
from tpusim.partition import (
    Plan,
    Template,
    loss_parts,
    lower,
    part_bounds,
    part_structures,
    schedule_of,
    stage_plan,
    stage_programs,
    structure,
)
from tpusim.partition.layout import Axes
from tpusim.partition.template import Comm, body_nodes
from tpusim.program import Program

Tiles: TypeAlias = tuple[tuple[str, int], ...]
"""Into how many parts each dimension of the loss is cut."""

Programs: TypeAlias = tuple[Program, ...]
"""The program of one device; of one of each stage where there is a pipeline."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step before it is laid on the torus.

    graph: forward and backward pass of one microbatch. dropped: as `Template` has it. axes: of its
    collectives.
    """

    graph: Graph
    dropped: tuple[tuple[str, int, str, int], ...]
    axes: frozenset[Axes]
    laid: Callable[[Placement], Programs]


def planned_step(model: Transformer, plan: Plan, pod: Slice) -> Step:
    """The step of `model` under `plan` on `pod`. Raises PlanError for a plan that cannot be."""
    graph = planned_graph(model, plan)
    if not plan.pipeline:
        template = structure(graph, plan)
        return _step(graph, [template], lambda at: (lower(template, graph, plan, pod, at),))
    inner, schedule = stage_plan(plan), schedule_of(plan)
    forward = _forward(model, inner)
    parts = _parts(
        model, inner.microbatch, inner.seq_len, inner.remat_policy, inner.logits_dtype,
        _tiles(inner, forward), schedule.splits,
        part_bounds(plan, layer_count(forward), model.name),
    )  # fmt: skip
    templates = part_structures(graph, inner, parts)
    return _step(
        graph, templates,
        lambda at: stage_programs(model.name, parts, templates, plan, pod, at),
    )  # fmt: skip


def _step(
    graph: Graph, templates: Iterable[Template], laid: Callable[[Placement], Programs]
) -> Step:
    found = list({id(template): template for template in templates}.values())
    nodes = (node for template in found for node, _ in body_nodes(template.nodes))
    axes = frozenset(node.axes for node in nodes if isinstance(node, Comm))
    dropped = tuple(dict.fromkeys(drop for template in found for drop in template.dropped))
    return Step(graph, dropped, axes, laid)


def planned_graph(model: Transformer, plan: Plan) -> Graph:
    """Forward and backward pass of one microbatch of `plan`."""
    plan = stage_plan(plan) if plan.pipeline else plan
    return step_graph(
        model, plan.microbatch, plan.seq_len, plan.remat_policy, plan.logits_dtype,
        _tiles(plan, _forward(model, plan)) if plan.vocab_tiles > 1 else (),
    )  # fmt: skip


def _forward(model: Transformer, plan: Plan) -> Graph:
    return model.graph(batch=plan.microbatch, seq_len=plan.seq_len, logits_dtype=plan.logits_dtype)


def _tiles(plan: Plan, forward: Graph) -> Tiles:
    return tuple(loss_parts(plan, forward).items()) if plan.vocab_tiles > 1 else ()


@lru_cache(maxsize=32)
def step_graph(
    model: Transformer, batch: int, seq_len: int, remat: Remat, logits_dtype: str = COMPUTE,
    tiles: Tiles = (),
) -> Graph:  # fmt: skip
    """Forward and backward pass of one microbatch, kept for the next plan of the same `batch`.

    tiles: into how many each dimension of the loss is cut, see `with_tiled_loss`.
    """
    forward = model.graph(batch=batch, seq_len=seq_len, logits_dtype=logits_dtype)
    return training_step(with_tiled_loss(forward, dict(tiles)), remat)


@lru_cache(maxsize=32)
def _parts(
    model: Transformer, batch: int, seq_len: int, remat: Remat, logits_dtype: str, tiles: Tiles,
    later: bool, bounds: tuple[int, ...],
) -> tuple[Part, ...]:  # fmt: skip
    """The parts of a model between layers, equal ones as one object, kept for the next plan."""
    forward = model.graph(batch=batch, seq_len=seq_len, logits_dtype=logits_dtype)
    known: dict[Part, Part] = {}
    found = (
        part_of_model(
            forward, first, last, remat,
            tiled=lambda graph: with_tiled_loss(graph, dict(tiles)), later=later,
        )
        for first, last in pairwise(bounds)
    )  # fmt: skip
    return tuple(known.setdefault(part, part) for part in found)
