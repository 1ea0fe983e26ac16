"""The front door: checks the arguments of a simulation, then runs the plan or the program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import is_list
from tpusim.compiler.compiled import Compiled
from tpusim.engine import check_network_mode
from tpusim.hardware import Placement, Slice
from tpusim.models import Architecture
from tpusim.plan import CIRCULAR, Input, Plan
from tpusim.results import PlanResult, ReplayResult
from tpusim.simulation.advice import plan_advice, step_time_of
from tpusim.simulation.advice.reasons import plan_reasons
from tpusim.simulation.arguments import check_arguments, check_input, check_slice
from tpusim.simulation.fed_step import fed
from tpusim.simulation.fit_search import ways_to_fit
from tpusim.simulation.plan_run import run_plan
from tpusim.simulation.program_run import replay

HOPS_MOST_CHIPS = 512
"""The largest torus that is simulated hop by hop."""

NOT_FOR_PROGRAMS = "a compiled program brings its own, and its collectives are flows; leave it out"
NOT_FOR_PLANS = (
    "it is for compiled programs: a plan has its mesh, and a model its FLOPs; leave it out"
)


@overload
def simulate(
    model: Architecture | str,
    plan: Plan,
    pod: Slice | str,
    *,
    fold: bool = True,
    placement: Placement | None = None,
    among: Sequence[Placement] | None = None,
    network: str = "flows",
    input: Input | None = None,
) -> PlanResult: ...


@overload
def simulate(
    model: Compiled,
    /,
    *,
    pod: Slice | str | None = None,
    fold: bool = True,
    costs: str | None = None,
    mesh: Mapping[str, int] | None = None,
    model_flops: float | None = None,
    padding_taps: bool | None = None,
) -> ReplayResult: ...


@checked_call
def simulate(
    model: Architecture | Compiled | str,
    plan: Plan | None = None,
    pod: Slice | str | None = None,
    *,
    fold: bool = True,
    placement: Placement | None = None,
    among: Sequence[Placement] | None = None,
    network: str = "flows",
    costs: str | None = None,
    mesh: Mapping[str, int] | None = None,
    model_flops: float | None = None,
    padding_taps: bool | None = None,
    input: Input | None = None,
) -> PlanResult | ReplayResult:
    """Simulate one training step of `model` under `plan` on `pod`, or one run of a program.

    A plan that does not fit in HBM is a result whose `fits` is false.
    Raise PlanError with one sentence if the model or the slice does not admit the plan.

    model: an architecture, such as a transformer, or the name of a published one (`llama3-8b`); or
        a compiled program, which brings its plan, and its slice unless `pod` is given.
    pod: a slice, or its name: `v5e-256`, `v4:8x16x16`, `v5e:16x16 x 2`.
    placement: in place of the plan's own. If neither is given, it is the one of `among` with the
        shortest step, the first of equal ones; `among` defaults to `hardware.candidates`.
    fold: skip repeated iterations of loops and book their time, and on a slice with slow parts run
        one device of each class; the result is the same to the picosecond.
    network: `flows`, or `hops` for every message of every collective on every link, as a check of
        the first on a small slice; it is not folded, and the placement is chosen with flows.
    input: the input pipeline of the hosts; None for batches that are there when a step begins.
    costs, mesh, model_flops, padding_taps: of a compiled program, see `replay`.
    """
    if isinstance(model, Compiled):
        if isinstance(plan, Slice):
            raise PlanError(f"{plan} stands where a plan does; write simulate(compiled, pod=...)")
        mode = None if network == "flows" else network
        given = {
            "plan": plan,
            "placement": placement,
            "among": among,
            "network": mode,
            "input": input,
        }
        _refuse(given, NOT_FOR_PROGRAMS)
        machine = None if pod is None else check_slice(pod, "write simulate(compiled, pod=...)")
        return replay(
            model,
            machine,
            costs=costs,
            mesh=mesh,
            model_flops=model_flops,
            padding_taps=padding_taps is not False,
            fold=fold,
        )
    of_programs = {
        "costs": costs,
        "mesh": mesh,
        "model_flops": model_flops,
        "padding_taps": padding_taps,
    }
    _refuse(of_programs, NOT_FOR_PLANS)
    run = model, plan, pod = check_arguments(model, plan, pod)
    _check_network(network, plan.active_schedule, pod)
    _check_slow(network, pod)
    _check_placements(placement, among)
    check_input(input, plan.input_s)
    result = run_plan(*run, fold=fold, placement=placement, among=among, network=network)
    if input is not None:
        result = fed(result, input)
    return replace(
        result,
        adviser=plan_advice,
        retried=step_time_of,
        fitter=ways_to_fit,
        reasoner=plan_reasons,
    )


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Raise PlanError for arguments that are given and would have no effect."""
    for name, value in given.items():
        if value is not None:
            raise PlanError(f"{name} is given, but {why}")


def _check_placements(placement: Any, among: Any) -> None:
    """Raise PlanError for what is no placement, and no list of them."""
    if among is not None and not is_list(among):
        raise PlanError(f"among is {shown(among)}; write a list of placements")
    for each in (placement, *(among or ())):
        if each is not None and not isinstance(each, Placement):
            raise PlanError(
                f"a placement is {shown(each)}; write one of hardware.candidates(slice, mesh), or "
                "its text as the plan's placement"
            )


def _check_slow(network: str, pod: Slice) -> None:
    """Raise PlanError for slow parts where every message is followed."""
    if pod.slow and network == "hops":
        raise PlanError(
            f'network = "hops" follows the messages of a healthy slice, and this one has slow '
            f'parts ({pod.slow}); leave them out, or take network = "flows"'
        )


def _check_network(network: str, schedule: str, pod: Slice) -> None:
    """Raise PlanError for an unknown network mode, and for one that is too slow for the slice."""
    check_network_mode(network)
    if network == "hops" and schedule not in ("", CIRCULAR):
        raise PlanError(
            f'network = "hops" follows the messages of one program, but the schedule '
            f'{schedule} has one for each stage; take network = "flows", or schedule = '
            "'circular'"
        )
    if network == "hops" and pod.topology.chips > HOPS_MOST_CHIPS:
        raise PlanError(
            f'network = "hops" follows every message over every link, which takes too long on the '
            f"{pod.topology.chips} chips of {pod}; take a slice of at most {HOPS_MOST_CHIPS}, or "
            'network = "flows"'
        )
