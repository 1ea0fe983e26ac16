"""What a training run with failures assumes."""

from collections.abc import Iterator

from tpusim.failures import made_of_cubes
from tpusim.hardware import Slice
from tpusim.training.run import TrainingRun

MEASURED_RATES = "v4"
"""The generation whose rates of failure are published."""


def failure_notes(pod: Slice, run: TrainingRun) -> Iterator[str]:
    """Yield what is assumed of the failures of a run."""
    asked = run.failures
    assert asked is not None
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
