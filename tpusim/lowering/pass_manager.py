"""The passes that turn a body's nodes into its entries, in the order in which they run.

Graph passes rewrite nodes before the modes of collectives are known; then each collective gets its
mode; schedule passes rewrite the entries that come out. A pass that is an optimisation of
the compiler can be switched off by its name (`Plan.without_passes`, `--without`), and all that
compiled programs alone showed by `observed`; the others are what the plan asks for.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

from tpusim.base.errors import PlanError, nearest
from tpusim.base.hashable import hashable
from tpusim.base.same import Same
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.collective_lowering import OBSERVED
from tpusim.lowering.decisions import Body, BodyEvent, LoweringDecisions
from tpusim.lowering.lowering_pass import LoweringPass, Step
from tpusim.lowering.observed import passes as observed
from tpusim.lowering.operand_dtypes import mark_quantised
from tpusim.lowering.pass_log import current_log, pass_record
from tpusim.lowering.passes.backward_order import gradients_after_loop, weight_gradients_last
from tpusim.lowering.passes.collective_modes import choose_modes
from tpusim.lowering.passes.gather_quantised import gather_quantised
from tpusim.lowering.passes.halos import both_ways, exchange_halos, kernel_gradients_first
from tpusim.lowering.passes.merge_gradients import merge_gradients
from tpusim.lowering.passes.prefetch import prefetch
from tpusim.lowering.passes.quantise import insert_quantisations
from tpusim.lowering.passes.regather import regather
from tpusim.lowering.passes.rings_across_slices import rings_across_slices
from tpusim.lowering.passes.transfer_dtypes import insert_casts, set_transfer_dtypes
from tpusim.partition import Node

MOST_ALIKE = 64
"""Bodies of the same nodes that are kept; those that were not asked for longest go first."""


def _compiled(body: Body) -> bool:
    return not body.ideal


GRAPH_PASSES: tuple[LoweringPass[Node], ...] = (
    LoweringPass(
        "exchange-halos",
        "receive each row of a halo once, from each neighbour that has some, or gather them all",
        "convolutions and pools whose positions are sharded",
        "",
        exchange_halos,
    ),
    LoweringPass(
        "kernel-gradients-first",
        "multiply for the gradient of a kernel while the halo of its input's gradient arrives",
        "backward passes of convolutions whose positions are sharded",
        "nets of two and three convolutions on v4 and v5e, 2 x 4 and 4 x 4 devices",
        lambda nodes, body: kernel_gradients_first(nodes),
        _compiled,
    ),
    LoweringPass(
        "weight-gradients-last",
        "multiply for a layer's weight gradients after the rest of its backward pass",
        "bodies of loops with attention, where no activation is gathered for these matmuls",
        "12 plain models on v3 to 7x, and models with MaxText's flags on v5p and v6e",
        lambda nodes, body: weight_gradients_last(nodes, body.weights),
        lambda body: body.looped and _compiled(body),
    ),
    LoweringPass(
        "mark-quantised",
        "mark the operands of quantised matmuls with the dtype in which they multiply",
        "plans with a matmul dtype other than the compute dtype",
        "",
        lambda nodes, body: mark_quantised(nodes, body.numerics, body.weights),
        lambda body: body.numerics.quantised,
    ),
    LoweringPass(
        "transfer-dtypes",
        "gather weights and reduce gradients in their own dtypes",
        "always",
        "",
        lambda nodes, body: set_transfer_dtypes(nodes, body.numerics, body.weights, body.buffers),
    ),
    LoweringPass(
        "gather-quantised",
        "quantise activations before they are gathered",
        "activations that only quantised matmuls gather, in plans that gather what is quantised",
        "",
        lambda nodes, body: gather_quantised(nodes, body.buffers, body.numerics.noise),
        lambda body: body.numerics.gathers_quantised,
    ),
    LoweringPass(
        "regather",
        "gather a copy again where many matmuls separate two of its uses",
        "weights in lowerings with `regather_after`; activations that gradients of weights read",
        "480-billion-parameter encoder, v4 8x16x16: wq and wk twice in the backward pass; 17 plain "
        "plans on v3 to v6e: the input of attention",
        regather,
    ),
    LoweringPass(
        "rings-across-slices",
        "send a weight round all devices that it is sharded over, those of other slices too",
        "weights that become rings, sharded over a slice and across slices",
        "five plans over two slices of v4, v5e and v5p, rings over 16 and 32 devices",
        rings_across_slices,
    ),
    observed.SCATTER_APART,
    observed.REDUCE_AT_ONCE,
)

SCHEDULE_PASSES: tuple[LoweringPass[Entry], ...] = (
    LoweringPass(
        "halos-both-ways",
        "send the rows of both sides of a halo at once",
        "halos with neighbours on both sides",
        "",
        lambda entries, body: both_ways(entries),
    ),
    LoweringPass(
        "merge-gradients",
        "reduce small gradients in one all-reduce at the end of the body",
        "gradients of up to 4 MiB, and all-reduces of shards over a further axis",
        "480-billion-parameter encoder: K, V and the norms in one of 1 MiB; v6e 4x4: 104 MiB a "
        "layer over context",
        merge_gradients,
    ),
    observed.MERGE_ALL_REDUCES,
    LoweringPass(
        "gradients-after-loop",
        "multiply for the gradients outside of the layers once the layers are done",
        "matmuls before a loop whose results only the optimizer reads: rings, and those whose "
        "result is larger than what they free or is reduced beside the core",
        "the heads of 332 compiled plans for v2 to 7x, of which rings do either",
        gradients_after_loop,
        _compiled,
    ),
    LoweringPass(
        "prefetch",
        "start asynchronous gathers ahead of the matmul that reads them",
        "asynchronous gathers of weights, as deep and beside what the lowering's `overlap` says",
        "MaxText programs on v5e, v5p, v6e: depth one, never across the loop's boundary",
        prefetch,
    ),
    observed.EXCHANGE_COPIES,
    observed.HEAD_COPIES,
    LoweringPass(
        "insert-quantisations",
        "quantise each operand of a quantised matmul that is not quantised yet",
        "plans with a matmul dtype other than the compute dtype",
        "",
        lambda entries, body: insert_quantisations(entries, body.buffers, body.numerics.noise),
        lambda body: body.numerics.quantised,
    ),
    LoweringPass(
        "insert-casts",
        "cast gathered weights before their first reader",
        "weights that are gathered in another dtype than the compute dtype",
        "",
        lambda entries, body: insert_casts(entries, body.buffers),
    ),
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
    sharding, numerics, compiler, remat, _ = decisions.choices
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
