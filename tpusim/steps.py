"""A model and a plan become a step that a placement turns into programs: one, or one a stage."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from tpusim.errors import PlanError
from tpusim.graph import (
    Graph,
    Part,
    Remat,
    layer_count,
    part_of_model,
    training_step,
    with_repeated_keys,
    with_tiled_loss,
)
from tpusim.hardware import Placement, Slice
from tpusim.models import Routing, Transformer
from tpusim.partition import (
    CIRCULAR,
    Pieces,
    Plan,
    Template,
    check_circular,
    check_together,
    circular_program,
    edge_plan,
    kernel_copies,
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
    check_together(plan)
    graph = planned_graph(model, plan)
    if not plan.pipeline:
        template = structure(graph, plan)
        return _step(graph, [template], lambda at: (lower(template, graph, plan, pod, at),))
    inner = stage_plan(plan)
    bounds = part_bounds(plan, layer_count(_forward(model, _form(model, inner))), model.name)
    if plan.pipeline == CIRCULAR:
        return _circular(model, plan, pod, graph, bounds)
    parts = _parts(model, _form(model, inner), bounds, later=schedule_of(plan).splits)
    templates = part_structures(graph, inner, parts)
    return _step(
        graph, templates,
        lambda at: stage_programs(model.name, parts, templates, plan, pod, at),
    )  # fmt: skip


def _circular(
    model: Transformer, plan: Plan, pod: Slice, graph: Graph, bounds: tuple[int, ...]
) -> Step:
    """The step of a pipeline of one program; `graph` is of one microbatch."""
    check_circular(plan)
    inner, edges = stage_plan(plan), edge_plan(plan)
    chunks = _parts(model, _form(model, inner), bounds, ends=False)
    if any(chunk is not chunks[0] for chunk in chunks):
        raise PlanError(
            f"the layers of {model.name} are not alike from one part of {bounds[1]} to the next, "
            "but one program runs all stages of a circular pipeline; choose parts that are alike, "
            "or another schedule"
        )
    form, count = _form(model, edges), bounds[-1]
    whole = _whole(model, form)
    ends = _parts(model, form, (0, 0)) + _parts(model, form, (count, count))
    layers = part_structures(graph, inner, chunks[:1])
    outer = part_structures(whole, edges, ends)
    pieces = Pieces((chunks[0], layers[0]), (ends[0], outer[0]), (ends[1], outer[1]))
    return _step(
        graph, [*layers, *outer],
        lambda at: (circular_program(model.name, pieces, plan, pod, at),),
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
    return _whole(model, _form(model, stage_plan(plan) if plan.pipeline else plan))


class _Form(NamedTuple):
    """All that a graph depends on besides its model.

    tiles: into how many each dimension of the loss is cut, see `with_tiled_loss`. routing: how
    tokens find their experts. copies: to how many K/V heads are repeated before a kernel, see
    `with_repeated_keys`.
    """

    batch: int
    seq_len: int
    remat: Remat
    logits_dtype: str
    routing: Routing
    tiles: Tiles = ()
    copies: int = 0


def _form(model: Transformer, plan: Plan) -> _Form:
    """The form of the graph of one microbatch."""
    routing = Routing(
        capacity_factor=plan.capacity_factor, dispatch=plan.dispatch, exchange=plan.expert_exchange
    )
    form = _Form(plan.microbatch, plan.seq_len, plan.remat_policy, plan.logits_dtype, routing)
    if plan.vocab_tiles == 1 and not plan.exchanges_heads:
        return form
    forward = _forward(model, form)
    return form._replace(
        tiles=tuple(loss_parts(plan, forward).items()), copies=kernel_copies(plan, forward)
    )


def _forward(model: Transformer, form: _Form) -> Graph:
    forward = model.graph(
        batch=form.batch, seq_len=form.seq_len, logits_dtype=form.logits_dtype,
        routing=form.routing,
    )  # fmt: skip
    return with_repeated_keys(forward, form.copies) if form.copies else forward


@lru_cache(maxsize=32)
def _whole(model: Transformer, form: _Form) -> Graph:
    """Forward and backward pass, kept for the next plan of the same form."""
    return training_step(with_tiled_loss(_forward(model, form), dict(form.tiles)), form.remat)


@lru_cache(maxsize=32)
def _parts(
    model: Transformer, form: _Form, bounds: tuple[int, ...], later: bool = False,
    ends: bool = True,
) -> tuple[Part, ...]:  # fmt: skip
    """The parts of a model between layers, equal ones as one object, kept for the next plan."""
    forward = _forward(model, form)
    known: dict[Part, Part] = {}
    found = (
        part_of_model(
            forward, first, last, form.remat,
            tiled=lambda graph: with_tiled_loss(graph, dict(form.tiles)), later=later, ends=ends,
        )
        for first, last in pairwise(bounds)
    )  # fmt: skip
    parts = [known.setdefault(part, part) for part in found]
    labels = Counter(part.label for part in known)
    for number, part in enumerate(known.values(), start=1):
        if labels[part.label] > 1:
            known[part] = replace(part, label=f"{part.label} (kind {number})")
    return tuple(known[part] for part in parts)
