"""Profiled operations as rows: each instruction beside the cost of its replay."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpusim.base.errors import FileError, blame
from tpusim.calibration.estimate import Floats, Rows
from tpusim.calibration.trial import Trial
from tpusim.costs import CORE, Task, TaskLoop, TopTask, alone_seconds, cost_program
from tpusim.hardware import FACTORS, Chip, Placement, Slice, load_chip, parse_slice
from tpusim.hardware.legality import default_shape
from tpusim.profiles import Profile
from tpusim.profiles.profile import PS
from tpusim.program import Program

if TYPE_CHECKING:
    from tpusim.compiler import Compiled

KINDS = ("matmul", "attention", "vector")
COLLECTIVE = "collective"
"""Groups of operations whose errors have one scale."""

LEAST_S = 1e-6
"""Seconds of an operation of a step, all executions together, from which it counts."""


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """The instructions of a profiled program: seconds of an execution, and what predicts them.

    measured: mean seconds of one execution, by instruction.
    totals: seconds of all its executions in a step.
    """

    measured: Mapping[str, float]
    totals: Mapping[str, float]
    program: Program
    pod: Slice
    placement: Placement

    @classmethod
    def of(cls, profile: Profile, pod: Slice | str | None = None) -> "ProfiledSteps":
        """Return the instructions of the program of a profile's steps.

        Raise FileError for a profile without its HLO, of an unknown chip, or of another one.
        """
        from tpusim.compiler import translate_compiled

        with blame(profile.name):
            compiled = profile.program()
            if compiled is None:
                raise FileError(
                    "no HLO in the profile, so nothing predicts its operations; give its "
                    "*.xplane.pb, which has the programs"
                )
            if not profile.chip:
                raise FileError(
                    f"the profile is of {profile.kind or 'a chip that it does not state'}, which "
                    "is none of the catalogue's; give a profile of a TPU of `tpusim chips`"
                )
            chip = load_chip(profile.chip)
            chosen = parse_slice(pod) if isinstance(pod, str) else pod
            if chosen is None and compiled.slice is None:
                chosen = _usual_slice(compiled, chip)
            translated = translate_compiled(compiled, chosen)
            if translated.pod.chip.generation != chip.generation:
                raise FileError(
                    f"the profile is of {chip.generation}, and the slice {translated.pod} is not; "
                    "give the slice that it was taken on"
                )
        measured, totals = _measured(profile)
        return cls(measured, totals, translated.program, translated.pod, translated.placement)

    @property
    def chip(self) -> Chip:
        """The chip of the slice."""
        return self.pod.chip

    def rows(self, trial: Trial, factors: Sequence[str]) -> Rows:
        """Return a row for each instruction that both sides have, weighted by its time."""
        predicted = self._predicted(trial)
        names = [name for name in self.measured if predicted.get(name, (0.0, ""))[0] > 0]
        base = np.log([predicted[name][0] for name in names])
        grown = np.zeros((len(names), len(FACTORS)))
        for factor in factors:
            longer = self._predicted(trial.longer(factor))
            grown[:, FACTORS.index(factor)] = np.log([longer[name][0] for name in names]) - base
        ratios = np.log([self.measured[name] for name in names]) - base
        groups = tuple(predicted[name][1] for name in names)
        weights = _weights(groups, np.array([self.totals[name] for name in names]))
        return Rows(ratios, grown / trial.STEP, groups, weights)

    def _predicted(self, trial: Trial) -> dict[str, tuple[float, str]]:
        """Return seconds alone on the device and the kind of work, by instruction."""
        costed = cost_program(self.program, trial.pod(self.pod), self.placement)
        links, found = dict(costed.links), dict[str, tuple[float, str]]()
        for task in _tasks(costed.body):
            name = task.name.partition("/")[0]
            kind = task.label if task.label in KINDS else COLLECTIVE
            found[name] = found.get(name, (0.0, ""))[0] + alone_seconds(task, links), kind
        return found


def _tasks(body: Iterable[TopTask]) -> Iterator[Task]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _tasks(op.body)
        elif isinstance(op, Task) and op.stream == CORE:
            yield op


def _usual_slice(compiled: "Compiled", chip: Chip) -> Slice:
    """Return the most cube-like slice with as many devices as a program."""
    from tpusim.compiler.hlo.read import read_module

    devices = read_module(compiled.data, compiled.name).devices
    return Slice(chip, default_shape(chip.slice_rules, -(-devices // chip.devices)))


def _measured(profile: Profile) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean seconds of an execution of each instruction, and its seconds of a step."""
    table = profile.operations
    core = table[(table["program"] == profile.main) & ~table["asynchronous"] & ~table["wait"]]
    steps = max(int((profile.steps["program"] == profile.main).sum()), 1)
    found = core.groupby("instruction", observed=True)["self_ps"].agg(["mean", "sum"]) * PS
    found = found[(found["mean"] > 0) & (found["sum"] >= LEAST_S * steps)]
    names = [str(name) for name in found.index]
    means, totals = found["mean"].tolist(), (found["sum"] / steps).tolist()
    return dict(zip(names, means, strict=True)), dict(zip(names, totals, strict=True))


def _weights(groups: Sequence[str], totals: Floats) -> Floats:
    """Return weights in proportion to time that sum to the number of operations that they are like.

    Of n weights w it is `(sum w)^2 / sum w^2` (Kish, "Survey Sampling", 11.7).
    """
    weights = np.ones(len(groups))
    names = np.array(groups)
    for name in set(groups):
        mine = totals[names == name]
        weights[names == name] = mine * mine.sum() / (mine**2).sum()
    return weights
