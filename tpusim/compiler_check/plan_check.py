"""The check of a plan against the TPU compiler: its JAX program, compiled, beside the plan."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpusim.base.checked_call import checked_call
from tpusim.compiler import Compiled
from tpusim.compiler.compile_apart import check_time_limit
from tpusim.compiler.options import Option, check_options
from tpusim.compiler_check.comparison import TwinComparison, compare
from tpusim.compiler_check.compile_step import StepCompilation, compile_step, step_versions
from tpusim.compiler_check.step_names import StepNames
from tpusim.export.plan_to_jax import export_step
from tpusim.export.step_source import ExportedStep
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Compiler, Plan
from tpusim.results import PlanResult, ReplayResult, entry
from tpusim.simulation import simulate
from tpusim.simulation.arguments import check_arguments

TIME_LIMIT_S = 600.0
"""Seconds for the compiler."""

COLLECTIVE_MATMUL_OFF: Mapping[str, Option] = {
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000
}
"""The flag by which the compiler fuses no collective into a matmul, the least MiB that it would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """A plan beside the program that the TPU compiler made of its exported step.

    step: the exported step.
    compiled: the program; one that the compiler refused, as it needs more HBM than there is, has
        its `refusal`, and is the last that the compiler tried.
    plan, program: the simulated plan, and the replayed program.
    comparison: the two side by side.
    """

    step: ExportedStep
    compiled: Compiled
    plan: PlanResult
    program: ReplayResult
    comparison: TwinComparison

    def __str__(self) -> str:
        notes = (line for note in self.notes() for line in entry("note", note))
        return "\n".join([str(self.comparison), "", *notes])

    def notes(self) -> Iterator[str]:
        """Yield what a reader must know about the program: its compiler, and what it is not."""
        made = ", ".join(f"{name} {version}" for name, version in self.compiled.versions)
        seconds = self.compiled.seconds
        took = "" if seconds is None else f" in {seconds:.1f} s"
        cached = ", now read from the cache" if self.compiled.from_cache else ""
        yield f"compiled by {made}{took}{cached}"
        if self.compiled.refusal:
            yield (
                f"the compiler refused it: {self.compiled.refusal}; the program is the last that "
                "it tried"
            )
        elif self.compiled.until == "schedule":
            yield (
                "the compiler was ended once its schedule and buffers were there, so collectives "
                "have their usual algorithms; --full generates code too"
            )
        yield "seconds of both sides are tpusim's: what differs is what the compiler does"
        yield "both sides are the step on the devices, without waits for the host"


def flags_of(compiler: Compiler) -> dict[str, Option]:
    """Return the compiler's flags that a plan's own choices stand for."""
    return {} if compiler.collective_matmul else dict(COLLECTIVE_MATMUL_OFF)


@checked_call
def check(
    model: Architecture | str,
    plan: Plan,
    pod: Slice | str,
    *,
    full: bool = False,
    time_limit: float | None = TIME_LIMIT_S,
    compiler_options: Mapping[str, Option] | None = None,
) -> PlanCheck:
    """Compile the JAX program of a plan with the TPU compiler, and compare the two.

    The program is compiled for the plan's slice and placement; no TPU is needed. All layers are
    compiled, as those of a scan cost the compiler no more than one.

    full: generate code too, which takes minutes, for the algorithms of collectives.
    time_limit: seconds for the compiler; None for no limit.
    compiler_options: flags of the compiler, see `ts.xla.compile`, beside those of the plan's own
        choices (`collective_matmul`).

    Raise PlanError for a plan that cannot be simulated or written as JAX, and CompileError if the
    extra `xla` is not installed, the compiler refuses the program for another reason than its HBM,
    or the time is over.
    """
    model, plan, pod = check_arguments(model, plan, pod, "check")
    step_versions()
    check_time_limit(time_limit)
    chosen = check_options({**flags_of(plan.compiler), **(compiler_options or {})})
    step = export_step(model, plan, pod)
    on_device = plan.replace(loop="asynchronous", input_s=0.0)  # as a program has no host's work
    planned = simulate(model, on_device, pod)
    return compared(
        StepCompilation(
            step=step, planned=planned, options=chosen, full=full, time_limit=time_limit
        )
    )


def compared(given: StepCompilation, names: StepNames | None = None) -> PlanCheck:
    """Compile a step, and compare its program with the plan's.

    names: of the step's parts; None for those of the plan.
    """
    step, planned = given.step, given.planned
    compiled = compile_step(given)
    program = simulate(compiled)
    refused = bool(compiled.refusal)
    return PlanCheck(
        step=step,
        compiled=compiled,
        plan=planned,
        program=program,
        comparison=compare(planned, program, dict(step.lines), refused=refused, names=names),
    )
