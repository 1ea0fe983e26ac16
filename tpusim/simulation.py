"""The front door: a model, a plan and a slice become a result."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from tpusim.engine import check_network_mode, run
from tpusim.errors import PlanError
from tpusim.graph import (
    COMPUTE,
    Graph,
    Remat,
    Scan,
    training_step,
    with_repeated_keys,
    with_tiled_loss,
)
from tpusim.hardware import Placement, Slice, candidates, placement_from
from tpusim.models import Routing, Transformer
from tpusim.partition import Plan, Template, kernel_copies, loss_parts, lower, structure
from tpusim.placing import Engine, Run, fastest, run_on, ways
from tpusim.result import Result, Verdicts, make_result

MOST_CHIPS = 512
"""The largest torus that is simulated hop by hop."""


def simulate(
    model: Transformer, plan: Plan, pod: Slice, *, fold: bool = True,
    placement: Placement | None = None, among: Sequence[Placement] | None = None,
    network: str = "flows",
) -> Result:  # fmt: skip
    """Simulate one training step of `model` under `plan` on `pod`.

    placement: in place of the plan's own. Where neither is given, it is the one of `among`
        with the shortest step, the first of equal ones; `among` is `hardware.candidates`.
    fold: book repeated trips of loops instead of simulating each; the result is the same to the
        picosecond.
    network: `flows`, or `hops` for every message of every collective on every link, as a check of
        the first on a small slice; it is not folded, and the placement is chosen with flows.

    A plan that does not fit in HBM is a result whose `fits` is false; one that the
    model or the slice does not admit raises PlanError with one sentence.
    """
    _check_network(network, pod)
    graph = planned_graph(model, plan)
    template = structure(graph, plan)
    given = placement or given_placement(plan, pod)
    laid = (given,) if given else tuple(among or candidates(pod, plan.mesh))
    ran = best_run(template, graph, plan, pod, laid, partial(run, fold=fold))
    if network == "hops":
        ran = run_on(ran.placement, ran.program, pod, partial(run, network="hops"))
    verdicts = Verdicts(template.dropped, given is not None, network, unread(graph, plan))
    return make_result(model, plan, pod, ran.placement, graph, ran.program, ran.timeline, verdicts)


def _check_network(network: str, pod: Slice) -> None:
    """Raise PlanError for a network that does not exist, or that is too slow for the slice."""
    check_network_mode(network)
    if network == "hops" and pod.topology.chips > MOST_CHIPS:
        raise PlanError(
            f'network = "hops" follows every message over every link, which takes too long on the '
            f"{pod.topology.chips} chips of {pod}; take a slice of at most {MOST_CHIPS}, or "
            'network = "flows"'
        )


def planned_graph(model: Transformer, plan: Plan) -> Graph:
    """Forward and backward pass of one microbatch of `plan`."""
    routing = Routing(
        capacity_factor=plan.capacity_factor, dispatch=plan.dispatch, exchange=plan.expert_exchange
    )
    parts: Mapping[str, int] = {}
    copies = 0
    if plan.vocab_tiles > 1 or plan.exchanges_heads:
        forward = model.graph(batch=plan.microbatch, seq_len=plan.seq_len, routing=routing)
        parts = loss_parts(plan, forward)
        copies = kernel_copies(plan, forward)
    return step_graph(
        model, plan.microbatch, plan.seq_len, plan.remat_policy, plan.logits_dtype,
        tuple(parts.items()), routing, copies,
    )  # fmt: skip


@lru_cache(maxsize=32)
def step_graph(
    model: Transformer, batch: int, seq_len: int, remat: Remat, logits_dtype: str = COMPUTE,
    parts: tuple[tuple[str, int], ...] = (), routing: Routing | None = None, copies: int = 0,
) -> Graph:  # fmt: skip
    """Forward and backward pass of one microbatch, kept for the next plan of the same `batch`.

    parts: into how many each dimension of the loss is cut, see `with_tiled_loss`. routing: how
        tokens find their experts. copies: to how many K/V heads are repeated before a kernel, see
        `with_repeated_keys`.
    """
    forward = model.graph(batch=batch, seq_len=seq_len, logits_dtype=logits_dtype, routing=routing)
    if copies:
        forward = with_repeated_keys(forward, copies)
    return training_step(with_tiled_loss(forward, dict(parts)), remat)


def unread(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Names of `save` and `offload` that no layer saves: its backward pass does not read them."""
    saved = {t.short for op in graph.ops if isinstance(op, Scan) for t in op.saves}
    return tuple(name for name in (*plan.save, *plan.offload) if name not in saved)


def given_placement(plan: Plan, pod: Slice) -> Placement | None:
    """The placement that the plan gives, if it gives one."""
    if plan.placement is None:
        return None
    return placement_from(pod, plan.mesh, plan.placement)


def best_run(
    template: Template, graph: Graph, plan: Plan, pod: Slice, laid: tuple[Placement, ...],
    engine: Engine,
) -> Run:  # fmt: skip
    """The fastest step on the placements; a single one is simulated without more ado."""
    if len(laid) == 1:
        return run_on(laid[0], lower(template, graph, plan, pod, laid[0]), pod, engine)
    return fastest(ways(template, graph, plan, pod, laid), pod, engine)[0]
