"""One run simulated: what was measured, what was predicted, and where the step goes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpusim.errors import TpusimError
from tpusim.hardware import placements
from tpusim.plan_result import PlanResult
from tpusim.simulation import simulate
from tpusim.summary import infeasible_reason
from tpusim.validation.measured import Measured
from tpusim.validation.words import obstacles, setup

LONG_CONTEXT = 32768
NARROW = ("int8", "fp8")
FAMILIES = ("dense", "MoE", "long context", "int8/fp8", "multislice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run beside its simulation. Seconds a step, fractions; None where there is nothing.

    status: `ok`, `error` (cannot be simulated) or `defect` (a fault of ours). reason: why it is no
        `ok`, or what a plan needs that does not fit in HBM.
    error: predicted over measured, less one. mfu and measured_mfu: see docs/nomenclature.md; the
        measured one is the model's FLOPs over the measured time, or the table's where there is no
        simulation. guess_s: the time that the median MFU of the other runs of the chip gives.
    shares: of the predicted step, by label of the breakdown; they sum to one.
    """

    run: Measured
    status: str
    reason: str = ""
    predicted_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    measured_mfu: float | None = None
    tflops_per_device: float | None = None
    measured_tflops_per_device: float | None = None
    fits: bool | None = None
    hbm_peak_bytes: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    guess_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run was simulated."""
        return self.status == "ok"

    @property
    def error(self) -> float | None:
        """Signed error of the predicted time."""
        return None if self.predicted_s is None else self.predicted_s / self.run.step_s - 1

    @property
    def guess_error(self) -> float | None:
        """Signed error of the guessed time."""
        return None if self.guess_s is None else self.guess_s / self.run.step_s - 1


def outcome(run: Measured) -> Outcome:
    """Simulate a run; one that cannot be is an outcome with a reason."""
    try:
        lacking = list(obstacles(run))
        if lacking:
            return _failed(run, "error", f"not simulated yet: {', '.join(lacking)}")
        given = setup(run)
        among = placements(given.pod, given.plan.mesh)
        result = simulate(given.model, given.plan, given.pod, among=among)
        return _simulated(run, result, given.notes)
    except TpusimError as error:
        return _failed(run, "error", str(error))
    except Exception as error:
        if "TPUSIM_DEBUG" in os.environ:
            raise
        return _failed(run, "defect", f"a defect of tpusim, please report it: {error!r}")


def _failed(run: Measured, status: str, reason: str) -> Outcome:
    """Without a simulation there is the table's own MFU."""
    mfu = run.mfu_half_causal_pct / 100 or None
    return Outcome(run=run, status=status, reason=" ".join(reason.split()), measured_mfu=mfu)


def _simulated(run: Measured, result: PlanResult, notes: tuple[str, ...]) -> Outcome:
    speed = result.step_time_s / run.step_s
    need = infeasible_reason(result).partition(":")[0]
    return Outcome(
        run=run, status="ok", predicted_s=result.step_time_s, mfu=result.mfu, hfu=result.hfu,
        measured_mfu=result.mfu * speed, tflops_per_device=result.tflops_per_device,
        measured_tflops_per_device=result.tflops_per_device * speed, fits=result.fits,
        hbm_peak_bytes=result.hbm_peak_bytes, notes=notes,
        reason="" if result.fits else f"does not fit: {need}",
        shares={name: s / result.step_time_s for name, s in result.breakdown_s.items()},
    )  # fmt: skip


def families(run: Measured) -> tuple[str, ...]:
    """The families of a run: `dense` is none of the others, of which it may have several."""
    found = tuple(_special(run))
    return found or FAMILIES[:1]


def _special(run: Measured) -> Iterator[str]:
    if run.experts:
        yield "MoE"
    if run.seq_len >= LONG_CONTEXT:
        yield "long context"
    if run.dtype.startswith(NARROW):
        yield "int8/fp8"
    if run.num_slices > 1:
        yield "multislice"
