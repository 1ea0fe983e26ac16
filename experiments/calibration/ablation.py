"""What each mechanism earns: the errors on the measured runs with it and without it.

    python experiments/calibration/ablation.py [--write] [--runs] [NAME ...]

prints a row per switch, or those that are named; `--write` writes the table into README.md, and
`--runs` lists the runs that move. All takes some four minutes.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from fitted_constants import ESTIMATED, WHOLE_RUNS, with_constants
from matmul_estimates import OVERLAP, matmul_surface
from run_errors import MOVED, table

from tpusim.lowering import all_passes
from tpusim.runfile import SimulationRun
from tpusim.validation import MeasuredRun, RunChange
from tpusim.validation.error_table import in_page
from tpusim.validation.format import percent, signed
from tpusim.validation.outcome import RunOutcome, simulate_run
from tpusim.validation.statistics import by_chip, error_statistics

PAGE = Path(__file__).with_name("README.md")
MARKER = "ablation"
CHIPS = ("v4", "v5e", "v5p", "v6e", "7x")
"""Chips with more than one run: the table has the mean error of each."""

NEUTRAL = {
    OVERLAP: (1.0, "1: array, then memory"),
    "matmul_overlap_in_step": (1.0, "1: array, then memory"),
    "epilogue_overlap": (1.0, "1: array, then epilogue"),
    "attention_efficiency_forward": (1.0, "1"),
    "attention_efficiency_backward": (1.0, "1"),
}
"""Neutral values of constants of estimates, and what they mean; 0 for those that are not here."""

WHOLE_LOSS = {"vocab_blocks": 1, "loss_labels": "mask", "logits_dtype": ""}
"""The loss of a plan that says nothing of it."""


@dataclass(frozen=True)
class Switch:
    """A mechanism that is switched off, or a constant at its neutral value.

    kind: `pass of the lowering`, `input of the plan` or `constant`.
    off: what is done instead, in words.
    """

    kind: str
    name: str
    off: str
    without_passes: tuple[str, ...] = ()
    change: RunChange | None = None

    def outcome(self, run: MeasuredRun) -> RunOutcome:
        """Return the outcome of a measured run without the mechanism."""
        return simulate_run(run, self.without_passes, self.change)

    def outcomes(self) -> list[RunOutcome]:
        """Return the outcomes of all measured runs."""
        return list(map(self.outcome, table()))


def switches() -> dict[str, Switch]:
    """Return all switches by name."""
    found = (*_passes(), *_inputs(), *_constants())
    return {each.name: each for each in found}


def _passes() -> Iterator[Switch]:
    optional = dict.fromkeys(each.name for each in all_passes() if each.optional)
    for name in (*optional, "observed"):
        yield Switch("pass of the lowering", name, "switched off", without_passes=(name,))


def _inputs() -> Iterator[Switch]:
    for name, off, change in (
        ("loop", "asynchronous", _planned(loop="asynchronous")),
        ("collective_matmul", "on everywhere", _planned(collective_matmul=True)),
        ("collective_matmul off", "off everywhere", _planned(collective_matmul=False)),
        ("vocab_blocks", "1", _planned(vocab_blocks=1)),
        ("loss_labels", "by a mask", _planned(loss_labels="mask")),
        ("vocab_blocks, loss_labels", "1, by a mask", _planned(**WHOLE_LOSS)),
        ("optimizer", "Adam for Muon", _muon_as_adam),
        ("quantisation_noise", "to the nearest", _planned(quantisation_noise="")),
        ("style", "plain JAX for all", _planned(style="plain")),
        ("lowering", "`ideal` for all", _planned(lowering="ideal")),
    ):
        yield Switch("input of the plan", name, off, change=change)
    yield Switch("input of the model", "fused_qkv", "three matrices", change=_three_matrices)


def _planned(**keys: object) -> RunChange:
    """Return the change that sets keys of the plan."""
    return lambda setup: replace(setup, plan=setup.plan.replace(**keys))


def _three_matrices(setup: SimulationRun) -> SimulationRun:
    """Return the setup with a matrix each for queries, keys and values."""
    attention = getattr(setup.model, "attention", None)
    if attention is None or not attention.fused_qkv:
        return setup
    saved = [{"qkv": ("q", "k", "v")}.get(name, (name,)) for name in setup.plan.remat.save]
    plan = setup.plan.replace(save=tuple(sorted(set(chain.from_iterable(saved)))))
    return replace(setup, model=setup.model.replace(fused_qkv=False), plan=plan)


def _muon_as_adam(setup: SimulationRun) -> SimulationRun:
    muon = setup.plan.optimizer.name == "muon"
    return _planned(optimizer="adam")(setup) if muon else setup


def _constants() -> Iterator[Switch]:
    counted = Counter(each.name for group in WHOLE_RUNS for each in group.constants)
    for group in WHOLE_RUNS:
        for constant in group.constants:
            changed = constant.settings(constant.neutral)
            change = with_constants(dict.fromkeys(group.chips, changed))
            of = f" of {', '.join(group.chips)}" if counted[constant.name] > 1 else ""
            name = f"{constant.name}{of}"
            yield Switch("constant", name, f"{constant.neutral:g}", change=change)
    for name, chips in ESTIMATED.items():
        value, off = NEUTRAL.get(name, (0.0, "0"))
        change = with_constants({chip: {name: value} for chip in chips})
        yield Switch("constant", name, off, change=change)
    yield Switch("constant", "matmul_overlap refitted", "as in the table above", change=_refitted())


def _refitted() -> RunChange:
    found = {}
    for chip in ESTIMATED[OVERLAP]:
        surface = matmul_surface(chip)
        found[chip] = {OVERLAP: surface.values(surface.best())[OVERLAP]}
    return with_constants(found)


def markdown(chosen: Sequence[Switch]) -> str:
    """Return the table: a row with all mechanisms, then one for each that is switched off."""
    heads = ("without", "instead", "runs moved", "fail", "median", "mean", "p90", "bias")
    lines = [
        f"| {' | '.join((*heads, *(f'mean {chip}' for chip in CHIPS)))} |",
        "| --- | --- |" + (len(heads) - 2 + len(CHIPS)) * " ---: |",
    ]
    base = with_all()
    lines.append(_row("**nothing**", "", base, base))
    for kind in dict.fromkeys(each.kind for each in chosen):
        lines.append(f"| *{kind}* |" + (len(heads) - 1 + len(CHIPS)) * " |")
        lines += [
            _row(f"`{each.name}`", each.off, each.outcomes(), base)
            for each in chosen
            if each.kind == kind
        ]
    return "\n".join(lines) + "\n"


@cache
def with_all() -> list[RunOutcome]:
    """Return the outcome of each measured run with all mechanisms."""
    return [simulate_run(run) for run in table()]


def moved_runs(switch: Switch) -> str:
    """Return the errors of the runs that move, with the mechanism and without it."""
    lines = [
        f"{one.run.id}: {signed(one.error)} with, {signed(other.error)} without {switch.name}"
        for one, other in zip(with_all(), switch.outcomes(), strict=True)
        if moved([other], [one])
    ]
    return "\n".join(lines)


def _row(name: str, off: str, found: Sequence[RunOutcome], base: Sequence[RunOutcome]) -> str:
    errors = [one.error for one in found if one.error is not None]
    all_runs = error_statistics(errors)
    sizes = (percent(all_runs[f"{key}_abs_error"]) for key in ("median", "mean", "p90"))
    chips = by_chip(found)
    means = (_mean(chips.get(chip, [])) for chip in CHIPS)
    cells = (
        *(name, off, str(moved(found, base)), str(len(found) - len(errors))),
        *(*sizes, signed(all_runs["mean_error"]), *means),
    )
    return f"| {' | '.join(cells)} |"


def moved(found: Sequence[RunOutcome], base: Sequence[RunOutcome]) -> int:
    """Return how many runs take more than `MOVED` longer or shorter, or fail on one side."""
    times = [(one.predicted_s, other.predicted_s) for one, other in zip(found, base, strict=True)]
    return sum(
        one != other and (one is None or other is None or abs(one / other - 1) > MOVED)
        for one, other in times
    )


def _mean(outcomes: Sequence[RunOutcome]) -> str:
    errors = [abs(one.error) for one in outcomes if one.error is not None]
    return percent(float(np.mean(errors)) if errors else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the table; return the exit code."""
    known = switches()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table into README.md")
    parser.add_argument("--runs", action="store_true", help="list the runs that move")
    parser.add_argument("names", nargs="*", metavar="NAME", help="switches; all by default")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.names) - set(known)):
        parser.error(f"no switch is called {', '.join(unknown)}; there are {', '.join(known)}")
    if given.write and given.names:
        parser.error("--write writes the whole table; leave the names out")
    chosen = [known[name] for name in given.names or known]
    if given.runs:
        print("\n\n".join(map(moved_runs, chosen)))
        return 0
    text = markdown(chosen)
    print(text)
    if given.write:
        PAGE.write_text(in_page(PAGE.read_text("utf-8"), text, MARKER), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
