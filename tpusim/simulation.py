"""The front door: a model, a plan and a slice become a result; or a compiled program does."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import overload

from tpusim.engine import check_network_mode, run
from tpusim.errors import PlanError
from tpusim.graph import Graph, Scan
from tpusim.hardware import Placement, Slice, candidates, placement_from
from tpusim.models import Transformer
from tpusim.partition import CIRCULAR, Plan
from tpusim.placing import Engine, Run, fastest, run_on, ways
from tpusim.plan_result import PlanResult, Verdicts, make_result
from tpusim.replay import replay
from tpusim.replay_result import ReplayResult
from tpusim.steps import Step, planned_graph, planned_step
from tpusim.xla.compiled import Compiled

MOST_CHIPS = 512
"""The largest torus that is simulated hop by hop."""


@overload
def simulate(
    model: Transformer, plan: Plan, pod: Slice, *, fold: bool = True,
    placement: Placement | None = None, among: Sequence[Placement] | None = None,
    network: str = "flows",
) -> PlanResult: ...  # fmt: skip


@overload
def simulate(
    model: Compiled, /, *, pod: Slice | None = None, fold: bool = True, costs: str | None = None,
    mesh: Mapping[str, int] | None = None, model_flops: float | None = None,
) -> ReplayResult: ...  # fmt: skip


def simulate(
    model: Transformer | Compiled, plan: Plan | None = None, pod: Slice | None = None, *,
    fold: bool = True, placement: Placement | None = None,
    among: Sequence[Placement] | None = None, network: str = "flows", costs: str | None = None,
    mesh: Mapping[str, int] | None = None, model_flops: float | None = None,
) -> PlanResult | ReplayResult:  # fmt: skip
    """Simulate one training step of `model` under `plan` on `pod`.

    placement: in place of the plan's own. Where neither is given, it is the one of `among`
        with the shortest step, the first of equal ones; `among` is `hardware.candidates`.
    fold: book repeated trips of loops instead of simulating each; the result is the same to the
        picosecond.
    network: `flows`, or `hops` for every message of every collective on every link, as a check of
        the first on a small slice; it is not folded, and the placement is chosen with flows.

    Or one run of a compiled program, which brings its plan, and its slice unless it is given; for
    costs, mesh and model_flops see `replay.replay`.

    A plan that does not fit in HBM is a result whose `fits` is false; one that the
    model or the slice does not admit raises PlanError with one sentence.
    """
    if isinstance(model, Compiled):
        if isinstance(plan, Slice):
            raise PlanError(f"{plan} stands where a plan does; write simulate(compiled, pod=...)")
        ours = {"plan": plan, "placement": placement, "among": among}
        _refuse(ours | {"network": None if network == "flows" else network}, _COMPILED)
        return replay(
            model, pod, costs=costs, mesh=mesh, model_flops=model_flops, fold=fold
        )  # fmt: skip
    _refuse({"costs": costs, "mesh": mesh, "model_flops": model_flops}, _PLANNED)
    if isinstance(model, (str, Path)):
        raise PlanError(
            f"the model is {str(model)!r}, a name or a path; write ts.models.load(name), or "
            "ts.xla.load(path) for a compiled program"
        )
    if callable(model):
        raise PlanError(
            "the model is a function; compile it first: "
            "simulate(ts.xla.compile(fn, *args, slice=..., mesh=...))"
        )
    if plan is None or pod is None:
        raise PlanError("a model needs a plan and a slice; write simulate(model, plan, pod)")
    _check_network(network, plan, pod)
    step = planned_step(model, plan, pod)
    given = placement or given_placement(plan, pod)
    laid = (given,) if given else tuple(among or candidates(pod, plan.mesh))
    ran = best_run(step, pod, laid, partial(run, fold=fold))
    if network == "hops":
        ran = run_on(ran.placement, ran.programs, pod, partial(run, network="hops"))
    unsaved = unread(step.graph, plan)
    verdicts = Verdicts(step.dropped, given is not None, network, unsaved)
    return make_result(
        model, plan, pod, ran.placement, step.graph, ran.programs, ran.timeline, verdicts
    )


_COMPILED = "a compiled program brings its own, and its collectives are flows; leave it out"
_PLANNED = "it is for compiled programs: a plan has its mesh, and a model its FLOPs; leave it out"


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Raise PlanError for what is given and would change nothing."""
    for name, value in given.items():
        if value is not None:
            raise PlanError(f"{name} is given, but {why}")


def _check_network(network: str, plan: Plan, pod: Slice) -> None:
    """Raise PlanError for a network that does not exist, or that is too slow for the slice."""
    check_network_mode(network)
    if network == "hops" and plan.pipeline not in ("", CIRCULAR):
        raise PlanError(
            f'network = "hops" follows the messages of one program, but the schedule '
            f'{plan.pipeline} has one for each stage; take network = "flows", or schedule = '
            "'circular'"
        )
    if network == "hops" and pod.topology.chips > MOST_CHIPS:
        raise PlanError(
            f'network = "hops" follows every message over every link, which takes too long on the '
            f"{pod.topology.chips} chips of {pod}; take a slice of at most {MOST_CHIPS}, or "
            'network = "flows"'
        )


def unread(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Names of `save` and `offload` that no layer saves: its backward pass does not read them."""
    saved = {t.short for op in graph.ops if isinstance(op, Scan) for t in op.saves}
    return tuple(name for name in (*plan.save, *plan.offload) if name not in saved)


def given_placement(plan: Plan, pod: Slice) -> Placement | None:
    """The placement that the plan gives, if it gives one."""
    if plan.placement is None:
        return None
    return placement_from(pod, plan.mesh, plan.placement)


def best_run(step: Step, pod: Slice, laid: tuple[Placement, ...], engine: Engine) -> Run:
    """The fastest step on the placements; a single one is simulated without more ado."""
    if len(laid) == 1:
        return run_on(laid[0], step.laid(laid[0]), pod, engine)
    return fastest(ways(step, pod, laid), pod, engine)[0]


__all__ = ["best_run", "given_placement", "planned_graph", "simulate", "unread"]
