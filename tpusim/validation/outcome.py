"""Outcomes of simulating measured runs: measured and predicted time, shares of the step."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tpusim.accuracy import ErrorRange, RunFeatures, measured_errors
from tpusim.base.errors import TpusimError
from tpusim.models import Architecture, Transformer
from tpusim.plan.numerics import NARROW_DTYPES
from tpusim.results import Fit, PlanResult, verdict_need
from tpusim.runfile import SimulationRun
from tpusim.simulation import simulate
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.open_span import StepSpan, open_span

LONG_CONTEXT = 32768
SMALL_MODEL = 1e9
OUTCOME_COLUMNS = (
    *("predicted_s", "error", "status", "reason", "mfu", "measured_mfu", "hfu"),
    *("tflops_per_device", "measured_tflops_per_device", "guess_s", "guess_error"),
    *(
        "fits",
        "fit",
        "hbm_peak_bytes",
        "printed_hbm_bytes",
        "reported_hbm_bytes",
        "low_s",
        "high_s",
        "in_range",
        "like_measured",
    ),
    *("span_low_s", "span_high_s", "in_span"),
)
RunChange: TypeAlias = Callable[[SimulationRun], SimulationRun]
"""What makes another simulation of a run: another chip, another plan."""

RUN_FAMILIES = ("dense", "MoE", "long context", "int8/fp8", "multislice", "below 1B")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A measured run and its simulation. Seconds per step and fractions; None where unknown.

    status: `ok`, `error` (cannot be simulated) or `defect` (a fault of ours).
    reason: why the status is not `ok`, or what a plan needs that does not fit in HBM, or hardly.
    fit: the verdict on HBM.
    hbm_peak_bytes, reported_hbm_bytes: what a device needs, and what frameworks print of it, see
        `PlanResult.reported_hbm_bytes`.
    mfu, measured_mfu: see docs/nomenclature.md; the measured one is the model's FLOPs over the
        measured time, or the source's own if there is no simulation.
    family: of the run (`family_of`).
    features: of the prediction.
    guess_s: the time that the median MFU of the chip's other runs gives.
    shares: fractions of the predicted step by label of the breakdown; they sum to one.
    span: of the predicted step over what the source leaves open; None where it says nothing open.
    """

    run: MeasuredRun
    status: str
    reason: str = ""
    predicted_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    measured_mfu: float | None = None
    tflops_per_device: float | None = None
    measured_tflops_per_device: float | None = None
    fits: bool | None = None
    fit: Fit | None = None
    hbm_peak_bytes: float | None = None
    reported_hbm_bytes: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    family: str = ""
    features: RunFeatures | None = None
    guess_s: float | None = None
    span: StepSpan | None = None

    @property
    def ok(self) -> bool:
        """True if the run was simulated."""
        return self.status == "ok"

    @property
    def error(self) -> float | None:
        """Signed relative error of the predicted time."""
        return None if self.predicted_s is None else self.predicted_s / self.run.step_s - 1

    @property
    def error_range(self) -> ErrorRange | None:
        """The range of measured over predicted time, made without the runs of this family."""
        if self.features is None:
            return None
        return measured_errors().range(self.features, without=self.family)

    @property
    def low_s(self) -> float | None:
        """The lower end of the range."""
        return self._end(0)

    @property
    def high_s(self) -> float | None:
        """The upper end of the range."""
        return self._end(1)

    def _end(self, place: int) -> float | None:
        if self.error_range is None or self.predicted_s is None:
            return None
        return self.error_range.of(self.predicted_s)[place]

    @property
    def in_range(self) -> bool | None:
        """True if the measured time is in the range."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.run.step_s <= self.high_s

    @property
    def span_low_s(self) -> float | None:
        """The shortest step over what the source leaves open."""
        return None if self.span is None else self.span.low_s

    @property
    def span_high_s(self) -> float | None:
        """The longest step over what the source leaves open."""
        return None if self.span is None else self.span.high_s

    @property
    def in_span(self) -> bool | None:
        """True if the measured time is in the span."""
        return None if self.span is None else self.span.has(self.run.step_s)

    @property
    def like_measured(self) -> bool | None:
        """False if no run of another family is like this one."""
        return None if self.error_range is None else self.error_range.measured

    @property
    def printed_hbm_bytes(self) -> float | None:
        """HBM of a device as the run's source prints it; None where it does not."""
        printed = self.run.measured.hbm_gib
        return None if printed is None else printed * 2**30

    @property
    def hbm_error(self) -> float | None:
        """Signed relative error of the HBM that is reported; None where none is printed."""
        if self.reported_hbm_bytes is None or self.printed_hbm_bytes is None:
            return None
        return self.reported_hbm_bytes / self.printed_hbm_bytes - 1

    @property
    def guess_error(self) -> float | None:
        """Signed relative error of the guessed time."""
        return None if self.guess_s is None else self.guess_s / self.run.step_s - 1


def simulate_run(
    run: MeasuredRun,
    without_passes: Sequence[str] = (),
    change: RunChange | None = None,
    *,
    spans: bool = False,
) -> RunOutcome:
    """Simulate a run; the outcome of one that cannot be simulated has a reason.

    without_passes: passes of the lowering to switch off.
    change: returns the run to simulate in place of the one that it gets.
    spans: also simulate what the source leaves open.
    """
    if run.given is None:
        return _failed(run, "error", run.reason)

    def simulated(given: SimulationRun) -> PlanResult:
        given = change(given) if change else given
        plan = given.plan.replace(without_passes=without_passes) if without_passes else given.plan
        return simulate(given.model, plan, given.pod, input=given.input)

    try:
        result = simulated(run.given)
        plausible = run.given.plausible if spans else ()
        span = open_span(run.measured, result, plausible, simulated)
        return _simulated(run, result, family_of(run, result.model), span)
    except TpusimError as error:
        return _failed(run, "error", str(error))
    except Exception as error:
        if "TPUSIM_DEBUG" in os.environ:
            raise
        return _failed(run, "defect", f"a defect of tpusim, please report it: {error!r}")


def _failed(run: MeasuredRun, status: str, reason: str) -> RunOutcome:
    printed = run.measured.mfu_pct
    mfu = None if printed is None else printed / 100
    return RunOutcome(run=run, status=status, reason=" ".join(reason.split()), measured_mfu=mfu)


def _simulated(
    run: MeasuredRun, result: PlanResult, family: str, span: StepSpan | None
) -> RunOutcome:
    speed = result.step_time_s / run.step_s
    return RunOutcome(
        run=run,
        status="ok",
        predicted_s=result.step_time_s,
        mfu=result.mfu,
        hfu=result.hfu,
        measured_mfu=result.mfu * speed,
        tflops_per_device=result.tflops_per_device,
        measured_tflops_per_device=result.tflops_per_device * speed,
        fits=result.fits,
        fit=result.fit,
        hbm_peak_bytes=result.hbm_peak_bytes,
        reported_hbm_bytes=result.reported_hbm_bytes,
        reason="" if result.fit is Fit.FITS else f"{result.fit}: {verdict_need(result)}",
        shares={name: s / result.step_time_s for name, s in result.breakdown_s.items()},
        family=family,
        features=result.features,
        span=span,
    )


def family_of(run: MeasuredRun, model: Architecture) -> str:
    """Return what the runs of one model by one framework have in common, on whatever chips.

    Their errors are not independent: the same software ran the same layers. A transformer is known
    by its dimensions, since sources give one model several names; its MLP is that of the experts
    where all layers have some.
    """
    framework = run.framework or "unnamed"
    if not isinstance(model, Transformer):
        return f"{framework} {model.name}"
    moe, layers = model.moe, model.layers
    mlp = moe.expert_mlp if all(map(moe.has_experts, range(layers))) else 0
    return f"{framework} {layers}x{model.embed}x{mlp or model.mlp} vocab {model.vocab}"


def families_of(run: MeasuredRun) -> tuple[str, ...]:
    """Return the families of a run, of which it may have several; `dense` if no other applies."""
    special = _special_families(run.given) if run.given else ()
    return tuple(special) or RUN_FAMILIES[:1]


def _special_families(run: SimulationRun) -> Iterator[str]:
    if run.model.has_experts:
        yield "MoE"
    if run.plan.seq_len >= LONG_CONTEXT:
        yield "long context"
    if run.plan.dtypes.matmul in NARROW_DTYPES:
        yield "int8/fp8"
    if run.pod.num_slices > 1:
        yield "multislice"
    if run.model.parameter_count < SMALL_MODEL:
        yield "below 1B"


def kinds_of(run: MeasuredRun) -> tuple[str, ...]:
    """Return the framework of a run, and the set of MaxText's dense bf16 runs if it is one."""
    given = run.given
    plain = (
        run.framework == "maxtext"
        and given is not None
        and given.plan.dtypes.of("matmul") == "bf16"
        and not given.model.has_experts
    )
    return (run.framework or "no framework", *(["maxtext dense bf16"] if plain else []))


def outcome_columns(outcomes: Sequence[RunOutcome]) -> dict[str, list[Any]]:
    """Return the table of outcomes by column; a label's share is 0 where a run lacks the label."""
    labels = list(dict.fromkeys(label for one in outcomes for label in one.shares))
    shares = {
        f"share {label}": [one.shares.get(label, 0.0) if one.ok else None for one in outcomes]
        for label in labels
    }
    rows = [_row(one) for one in outcomes]
    return {name: [row[name] for row in rows] for name in rows[0]} | shares


def _row(one: RunOutcome) -> dict[str, Any]:
    return {
        "id": one.run.id,
        "chip": one.run.chip,
        "families": ", ".join(families_of(one.run)),
        "measured_s": one.run.step_s,
        **{name: getattr(one, name) for name in OUTCOME_COLUMNS},
        "assumed": "; ".join(one.run.measured.assumed),
        "unmodelled": "; ".join(one.run.measured.unmodelled),
    }
