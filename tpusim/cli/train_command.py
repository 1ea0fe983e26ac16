"""The training runs of `tpusim train`: their results, table and advice."""

import sys
from collections.abc import Iterator, Sequence

from tpusim.base.errors import PlanError, blame
from tpusim.base.plain_text import visible
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_amount
from tpusim.runfile import read_one_plan
from tpusim.training import RunAdvice, TrainingResult, duration, failure_advice, train

HEAD = ("run", "steps", "step", "wall time", "goodput", "chip-hours", "USD", "kWh")


def training_results(
    paths: Sequence[str], settings: Sequence[str], *, quiet: bool = False
) -> Iterator[tuple[str, TrainingResult]]:
    """Yield the training run of each file; raise PlanError for a file without a section [train]."""
    for number, path in enumerate(paths, start=1):
        if len(paths) > 1 and not quiet:
            print(visible(f"run {number} of {len(paths)}: {path}"), file=sys.stderr, flush=True)
        run = read_one_plan(path, settings)
        with blame(run.where):
            if run.train is None:
                raise PlanError(
                    "there is no section [train]; write one with tokens, such as tokens = 1e12"
                )
            yield path, train(run.model, run.plan, run.pod, run.train, input=run.input)


def training_table(found: Sequence[tuple[str, TrainingResult]]) -> str:
    """Return a table with a row for each run, the shortest wall time first."""
    rows = [HEAD, *map(_row, sorted(found, key=lambda each: each[1].wall_s.value))]
    return "\n".join(wrapped_table(rows, left=1))


def _row(named: tuple[str, TrainingResult]) -> tuple[str, ...]:
    path, result = named
    cost, energy = result.cost_usd, result.energy_kwh
    return (
        path,
        f"{result.steps:,}",
        duration(result.step_time_s),
        duration(result.wall_s.value),
        f"{result.goodput:.1%}",
        format_amount(result.chip_hours.value),
        "-" if cost is None else format_amount(cost.value),
        "-" if energy is None else format_amount(energy.value),
    )


def advised(found: Sequence[tuple[str, TrainingResult]]) -> RunAdvice:
    """Return what would help a run with failures. Raise PlanError for several runs."""
    if len(found) > 1:
        raise PlanError(f"--advise is for one run, and {len(found)} are given; give one of them")
    return failure_advice(found[0][1])
