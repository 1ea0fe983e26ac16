"""The passes that turn a body's nodes into its entries, in the order in which they run.

Graph passes rewrite nodes before the modes of collectives are known; then each collective gets its
mode; schedule passes rewrite the entries that come out. A pass that is an optimisation of
the compiler can be switched off by its name (`Plan.without_passes`, `--without`), and all that
compiled programs alone showed by `observed`; the others are what the plan asks for. `passes.toml`
says what each does, where, and by which program.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

from tpusim.base.errors import PlanError, nearest
from tpusim.base.hashable import hashable
from tpusim.base.same import Same
from tpusim.lowering.body_entries import Entry, Step
from tpusim.lowering.collective_lowering import OBSERVED
from tpusim.lowering.decisions import Body, BodyEvent, LoweringDecisions
from tpusim.lowering.lowering_pass import LoweringPass, described
from tpusim.lowering.observed.beside_sums import matmul_beside_sums
from tpusim.lowering.observed.carried_gathers import carry_gathers
from tpusim.lowering.observed.cut_images import cut_images
from tpusim.lowering.observed.exchange_copies import (
    copy_exchanges,
    copy_head_exchanges,
    copy_row_exchanges,
)
from tpusim.lowering.observed.filled_rows import fill_rows
from tpusim.lowering.observed.gradient_of_one import share_gradient
from tpusim.lowering.observed.half_tiles import fill_half_tiles
from tpusim.lowering.observed.late_norm_gradient import late_norm_gradient
from tpusim.lowering.observed.merged_all_reduces import merge_all_reduces
from tpusim.lowering.observed.picked_logits import pick_logits
from tpusim.lowering.observed.reduced_at_once import reduce_at_once
from tpusim.lowering.observed.ring_copies import copy_ring_operands
from tpusim.lowering.observed.scattered_apart import scatter_apart
from tpusim.lowering.observed.softmax_in_matmuls import compute_softmax_in_matmuls
from tpusim.lowering.observed.turned_heads import turn_heads
from tpusim.lowering.observed.turned_tables import turn_tables
from tpusim.lowering.observed.whole_heads import reduce_heads_whole
from tpusim.lowering.operand_dtypes import mark_quantised
from tpusim.lowering.pass_log import current_log, pass_record
from tpusim.lowering.passes.backward_order import (
    gathers_before_layers,
    gradient_rings,
    gradients_after_loop,
    head_gradient_first,
    rings_after_layers,
    weight_gradients_last,
)
from tpusim.lowering.passes.collective_modes import choose_modes
from tpusim.lowering.passes.gather_quantised import gather_quantised
from tpusim.lowering.passes.gradient_before_overwrite import gradient_before_overwrite
from tpusim.lowering.passes.halos import both_ways, exchange_halos, kernel_gradients_first
from tpusim.lowering.passes.merge_gradients import merge_gradients
from tpusim.lowering.passes.prefetch import prefetch
from tpusim.lowering.passes.quantise import insert_quantisations
from tpusim.lowering.passes.recompute_late import recompute_late
from tpusim.lowering.passes.regather import regather
from tpusim.lowering.passes.rings_across_slices import rings_across_slices
from tpusim.lowering.passes.transfer_dtypes import insert_casts, set_transfer_dtypes
from tpusim.partition import Node

MOST_ALIKE = 64
"""Bodies of the same nodes that are kept; those that were not asked for longest go first."""


def _compiled(body: Body) -> bool:
    return not body.ideal


def _saves_more(body: Body) -> bool:
    """Return True if layers save more than their inputs."""
    return body.remat.policy != "full" or bool(body.remat.save)


def _matmuls_carry(body: Body) -> bool:
    """Return True if matmuls of weights carry gathers, as on v5e where none are in rings."""
    return any(low.carries for low in body.lowerings) and not gradient_rings(body)


def _may_unroll(body: Body) -> bool:
    return body.remat.unrolled or bool(body.remat.offload)


def _scans_layers(body: Body) -> bool:
    return body.looped and not body.remat.unrolled and _compiled(body)


GRAPH_PASSES: tuple[LoweringPass[Node], ...] = (
    described("exchange-halos", exchange_halos),
    described("pick-logits", pick_logits, _compiled),
    described("share-gradient", share_gradient, _compiled),
    described("softmax-in-matmuls", compute_softmax_in_matmuls, _compiled),
    described(
        "kernel-gradients-first", lambda nodes, body: kernel_gradients_first(nodes), _compiled
    ),
    described("regather", regather),
    described(
        "weight-gradients-last",
        weight_gradients_last,
        lambda body: body.looped and _compiled(body),
    ),
    described(
        "recompute-late",
        lambda nodes, body: recompute_late(nodes),
        lambda body: (
            body.looped and _saves_more(body) and _compiled(body) and not _matmuls_carry(body)
        ),
    ),
    described(
        "mark-quantised",
        lambda nodes, body: mark_quantised(nodes, body.numerics, body.weights),
        lambda body: body.numerics.quantised,
    ),
    described(
        "transfer-dtypes",
        lambda nodes, body: set_transfer_dtypes(nodes, body.numerics, body.weights, body.buffers),
    ),
    described(
        "gather-quantised",
        lambda nodes, body: gather_quantised(nodes, body.buffers, body.numerics.noise),
        lambda body: body.numerics.gathers_quantised,
    ),
    described("rings-across-slices", rings_across_slices),
    described("scatter-apart", scatter_apart),
    described("reduce-at-once", reduce_at_once, _compiled),
)

SCHEDULE_PASSES: tuple[LoweringPass[Entry], ...] = (
    described("halos-both-ways", lambda entries, body: both_ways(entries)),
    described("merge-gradients", merge_gradients),
    described("merge-all-reduces", merge_all_reduces),
    described("whole-heads", reduce_heads_whole, _compiled),
    described("gradients-after-loop", gradients_after_loop, _compiled),
    described(
        "late-norm-gradient",
        late_norm_gradient,
        lambda body: not body.looped and _compiled(body),
    ),
    described("head-gradient-first", head_gradient_first, _compiled),
    described("gradient-before-overwrite", gradient_before_overwrite, _compiled),
    described(
        "rings-after-layers",
        rings_after_layers,
        lambda body: body.looped and _may_unroll(body) and _compiled(body),
    ),
    described(
        "ring-copies",
        copy_ring_operands,
        lambda body: body.looped and body.remat.unrolled and _compiled(body),
    ),
    described(
        "gathers-before-layers",
        gathers_before_layers,
        lambda body: body.remat.unrolled and not body.remat.left_to_compiler and _compiled(body),
    ),
    described("turn-heads", turn_heads, _compiled),
    described("turn-tables", turn_tables, _compiled),
    described("half-tiles", fill_half_tiles, _scans_layers),
    described("carry-gathers", carry_gathers, _compiled),
    described(
        "matmul-beside-sums", matmul_beside_sums, lambda body: body.looped and _compiled(body)
    ),
    described("prefetch", prefetch),
    described("exchange-copies", copy_exchanges, _compiled),
    described("head-copies", copy_head_exchanges, _compiled),
    described("row-copies", copy_row_exchanges, _compiled),
    described("cut-images", cut_images, lambda body: not body.looped and _compiled(body)),
    described("fill-rows", fill_rows, lambda body: not body.looped and _compiled(body)),
    described(
        "insert-quantisations",
        lambda entries, body: insert_quantisations(entries, body.buffers, body.numerics.noise),
        lambda body: body.numerics.quantised,
    ),
    described("insert-casts", lambda entries, body: insert_casts(entries, body.buffers)),
)


def run_passes(
    decisions: LoweringDecisions, nodes: Sequence[Node], name: str, looped: bool
) -> list[Entry]:
    """Return the entries of a body in the order in which they run.

    decisions: of the plan.
    nodes: of the body, from partitioning.
    name: of the body, for the log.
    looped: True if it is the body of a loop.

    Bodies of the same nodes share their entries wherever what the passes asked has the same answer;
    those that held last are tried first. Under `record_passes`, all passes run.
    """
    if current_log() is not None:
        return _passed(decisions, nodes, name, looped)
    sharding, numerics, compiler, remat, *_ = decisions.choices
    choices = numerics, compiler, remat, hashable(sharding.context), decisions.permutes
    held = Same((decisions.declared, *nodes))
    known = _known_bodies(held, name, looped, tuple(sharding.mesh), choices)
    for body in tuple(known):
        log, made = body
        if decisions.agrees(log):
            known[:] = [body, *(each for each in known if each is not body)]
            return list(made)
    decisions.log.clear()
    entries = _passed(decisions, nodes, name, looped)
    known[:] = [(tuple(decisions.log), tuple(entries)), *known[: MOST_ALIKE - 1]]
    return entries


@lru_cache(maxsize=256)
def _known_bodies(
    held: Same, *known: Hashable
) -> list[tuple[tuple[BodyEvent, ...], tuple[Entry, ...]]]:
    """Return the entries of a body so far, each with what they depend on.

    held: its nodes, and the buffers of its graph.
    known: what its passes read without asking.
    """
    return []


def _passed(
    decisions: LoweringDecisions, nodes: Sequence[Node], name: str, looped: bool
) -> list[Entry]:
    for each in GRAPH_PASSES:
        nodes = _run(each, nodes, Body(decisions, nodes, name, looped))
    body = Body(decisions, nodes, name, looped)
    entries = choose_modes(body)
    for other in SCHEDULE_PASSES:
        entries = _run(other, entries, body)
    return entries


def _run(each: LoweringPass[Step], steps: Sequence[Step], body: Body) -> list[Step]:
    if not each.applies(body) or switched_off(each, body.compiler.without_passes):
        return list(steps)
    after = each.run(steps, body)
    log = current_log()
    if log is not None:
        log.append(pass_record(each.name, body.name, steps, after))
    return after


def switched_off(each: LoweringPass[Node] | LoweringPass[Entry], names: Sequence[str]) -> bool:
    """Return True if a pass is among those that a plan switches off."""
    return each.name in names or (each.observed and OBSERVED in names)


def all_passes() -> Iterator[LoweringPass[Node] | LoweringPass[Entry]]:
    """Yield every pass in the order in which it runs."""
    yield from GRAPH_PASSES
    yield from SCHEDULE_PASSES


def check_switches(names: Sequence[str]) -> None:
    """Raise PlanError for the name of a pass that does not exist or cannot be switched off."""
    known = [each.name for each in all_passes() if each.optional]
    for name in names:
        if name not in (*known, OBSERVED):
            needed = any(each.name == name for each in all_passes())
            why = (
                "the plan's own keys decide that pass"
                if needed
                else nearest(name, (*known, OBSERVED))
            )
            raise PlanError(f"plan.without_passes names {name!r}: {why}")
