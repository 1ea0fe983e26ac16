"""What a training run assumes."""

from collections.abc import Iterator

from tpusim.failures import Failures, made_of_cubes
from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.training.checkpoint import HOST_WRITE, HOST_WRITE_RANGE
from tpusim.training.compile_time import SPREAD, compile_seconds
from tpusim.training.parts import INITIALIZATION_RANGE, INITIALIZATION_S
from tpusim.training.result import GRID, GRID_RANGE, PUE
from tpusim.training.run import Checkpoints, TrainingRun
from tpusim.training.stragglers import Stragglers

MEASURED_RATES = "v4"
"""The generation whose rates of failure are published."""


def run_notes(step: PlanResult, run: TrainingRun) -> Iterator[str]:
    """Yield what is assumed of a run around a step."""
    if not step.fits:
        yield "the step does not fit in HBM, so this run cannot be; see its simulation"
    yield from _start(step, run)
    if run.step_time_s is None and step.error_range is None:
        yield "no measured run is like this step, so the wall time has no range of it"
    if run.checkpoints is not None and run.checkpoints.time_s is None:
        yield from _writes(run.checkpoints)
    yield from _rates(step, run)
    yield (
        "PROGRAM_STARTUP is compilation and the excess of the first steps"
        + ", CUSTOM_BADPUT_EVENTS the evaluations" * (run.evaluations is not None)
    )
    if run.failures is None:
        yield "no failure, restart or wait for a slice is simulated"
    else:
        yield from _failures(step.pod, run, run.failures)
    if run.stragglers is not None:
        yield from _stragglers(step, run.stragglers)


def _start(step: PlanResult, run: TrainingRun) -> Iterator[str]:
    if run.initialization_s is None:
        low, high = INITIALIZATION_RANGE
        yield (
            f"initialisation is assumed as {INITIALIZATION_S:g} s ({low:g} to {high:g}); write "
            "train.initialization_s"
        )
    if run.compile_s is None:
        low, high = SPREAD
        yield (
            f"compilation is taken as {compile_seconds(step):.0f} s, from the size of the program "
            f"(times {low:g} to {high:g}); write train.compile_s, 0 with a compilation cache"
        )
        yield from step.pod.chip.unsaid("its programs are taken to compile as fast as those for v4")


def _writes(saves: Checkpoints) -> Iterator[str]:
    if saves.host is None:
        low, high = HOST_WRITE_RANGE
        yield (
            f"a host is assumed to write {HOST_WRITE / 1e9:g} GB/s ({low / 1e9:g} to "
            f"{high / 1e9:g}); write train.checkpoints.host"
        )
    if saves.storage is None:
        yield "the storage is taken to be no limit; write train.checkpoints.storage"


def _rates(step: PlanResult, run: TrainingRun) -> Iterator[str]:
    """Yield the price and the grid that were taken."""
    chip = step.pod.chip
    if run.price is None and chip.price is not None:
        yield (
            f"a chip is taken at {chip.price:g} USD an hour, its list price on demand; write "
            "train.price"
        )
    if run.grid is None and chip.power is not None:
        low, high = GRID_RANGE
        yield (
            f"CO2 is that of {PUE:g} times the energy of the chips at {GRID:g} g/kWh, the mean of "
            f"the world ({low:g} to {high:g}); write train.grid"
        )


def _failures(pod: Slice, run: TrainingRun, asked: Failures) -> Iterator[str]:
    unit = "cube" if made_of_cubes(pod) else "slice"
    if pod.slice_rules.generation != MEASURED_RATES:
        yield (
            "rates of failure are published for v4 alone, and are taken from it; write "
            "[failures.causes]"
        )
    if run.checkpoints is None:
        yield (
            "nothing is written during the run, so each failure begins it anew; write "
            "[train.checkpoints]"
        )
    if asked.spares is None and not asked.elastic:
        yield (
            f"a spare {unit} is taken to be there whenever one fails, and is not paid for; write "
            "failures.spares"
        )
    if asked.restart_s is None:
        yield "devices start again as fast as at first; write failures.restart_s"
    if not asked.compile_s:
        yield "the compiled step comes from a cache after a failure; write failures.compile_s"
    yield (
        "repairs are exponential, with the mean of their cause; failures meet no spare, and fewer "
        "slices fail as often as all"
    )


def _stragglers(step: PlanResult, asked: Stragglers) -> Iterator[str]:
    if asked.chips is not None:
        yield "several slow chips take as long as one, and each is slow for whole steps"
    pauses = asked.pauses
    if pauses is not None and pauses.lead_s is None and step.plan.loop != "synchronous":
        yield (
            "hosts are taken to be a step ahead, which hides shorter pauses; write "
            "stragglers.pauses.lead_s"
        )
