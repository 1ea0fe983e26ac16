"""Profiled operations as rows: each instruction beside its time in the replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpusim.base.errors import FileError, blame
from tpusim.calibration.estimate import Floats, Rows
from tpusim.calibration.measured_steps import TrialFactors
from tpusim.costs import CORE, cost_program
from tpusim.diagnosis.diagnose import own_slice
from tpusim.diagnosis.measured import measured_steps
from tpusim.engine import run
from tpusim.hardware import FACTORS, Chip, Placement, Slice, load_chip, parse_slice
from tpusim.profiles import Profile
from tpusim.profiles.profile import PS
from tpusim.program import Program, walk_ops
from tpusim.results import core_records, operation_of

KINDS = ("matmul", "convolution", "attention", "vector")
COLLECTIVE = "collective"
"""Groups of operations whose errors have one scale."""

LEAST_S = 1e-6
"""Seconds of an instruction in a step, all executions together, from which it counts."""


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """The instructions of a profiled program, and what predicts them.

    measured: the core's seconds of a step, by instruction: a mean of all steps and devices, without
        steps that are slow for a reason of their own (`diagnosis`).
    """

    measured: Mapping[str, float]
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
                chosen = own_slice(profile, compiled)
            translated = translate_compiled(compiled, chosen)
            if translated.pod.chip.generation != chip.generation:
                raise FileError(
                    f"the profile is of {chip.generation}, and the slice {translated.pod} is not; "
                    "give the slice that it was taken on"
                )
            found = _measured(profile)
            if not found.keys() & {op.name for op, _ in walk_ops(translated.program.body)}:
                raise FileError(
                    "none of its operations is one of its program, as far as it is understood; "
                    "profile a whole step"
                )
        return cls(found, translated.program, translated.pod, translated.placement)

    @property
    def chip(self) -> Chip:
        """The chip of the slice."""
        return self.pod.chip

    def rows(self, trial: TrialFactors, factors: Sequence[str]) -> Rows:
        """Return a row for each instruction that both sides have, weighted by its time.

        groups of rows: the kinds of work, whose errors have scales of their own.
        """
        predicted = self._predicted(trial)
        names = [name for name in self.measured if predicted.get(name, (0.0, ""))[0] > 0]
        base = np.log([predicted[name][0] for name in names])
        grown = np.zeros((len(names), len(FACTORS)))
        for factor in factors:
            longer = self._predicted(trial.longer(factor))
            grown[:, FACTORS.index(factor)] = np.log([longer[name][0] for name in names]) - base
        ratios = np.log([self.measured[name] for name in names]) - base
        groups = tuple(predicted[name][1] for name in names)
        return Rows(ratios, grown / trial.STEP, groups, _weights(groups, np.exp(base)))

    def _predicted(self, trial: TrialFactors) -> dict[str, tuple[float, str]]:
        """Return the core's seconds of a replayed step and the kind of work, by instruction."""
        timeline = run([cost_program(self.program, trial.pod(self.pod), self.placement)])
        found: dict[str, tuple[float, str]] = {}
        for record in core_records(timeline):
            if record.stream == CORE:
                name = operation_of(record)
                kind = record.label if record.label in KINDS else COLLECTIVE
                found[name] = found.get(name, (0.0, ""))[0] + PS * record.total_ps, kind
        return found


def _measured(profile: Profile) -> dict[str, float]:
    """Return the core's mean seconds of a step by instruction, without waits and slow steps."""
    table, typical = profile.operations, measured_steps(profile).typical[["device", "step"]]
    core = table[(table["program"] == profile.main) & ~table["asynchronous"] & ~table["wait"]]
    core = core.merge(typical, on=["device", "step"])
    found = core.groupby("instruction", observed=True)["self_ps"].sum() * (PS / len(typical))
    return {str(name): float(seconds) for name, seconds in found.items() if seconds >= LEAST_S}


def _weights(groups: Sequence[str], totals: Floats) -> Floats:
    """Return weights in proportion to time that sum to the number of operations that they are like.

    Of n weights w it is `(sum w)^2 / sum w^2` (Kish, "Survey Sampling", 11.7).

    totals: predicted seconds; with measured ones, what is too slow would count more.
    """
    weights = np.ones(len(groups))
    names = np.array(groups)
    for name in set(groups):
        mine = totals[names == name]
        weights[names == name] = mine * mine.sum() / (mine**2).sum()
    return weights
