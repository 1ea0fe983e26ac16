"""The result of a plan: the model, the plan and its placement, and what follows from them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tpusim.accuracy import (
    ErrorRange,
    HbmFeatures,
    HbmOdds,
    MeasuredMfu,
    RunFeatures,
    expected_range,
    hbm_odds,
    measured_mfu,
)
from tpusim.base.units import format_bytes, format_count
from tpusim.frames import choices_of
from tpusim.lowering import borrowed_notes
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import CIRCULAR, Plan
from tpusim.plan.numerics import NARROW_DTYPES
from tpusim.program import Single, reported_heap
from tpusim.results.circular_iterations import iterations_of, unread_ps
from tpusim.results.deciding_defaults import deciding_defaults
from tpusim.results.fit import Fit, fit_of, fit_of_odds
from tpusim.results.hbm_features import hbm_features
from tpusim.results.input_use import InputUse
from tpusim.results.result import BUBBLE_LABEL, Result, resident_bytes
from tpusim.results.step_warning import StepWarning
from tpusim.results.step_warnings import step_warnings
from tpusim.results.straggler_table import stragglers
from tpusim.results.summary import summary
from tpusim.results.totals import collective_axes
from tpusim.results.unit_cost import UnitCost
from tpusim.results.unmoved_keys import unmoved_keys
from tpusim.results.unused_keys import unused_keys
from tpusim.results.unused_model_keys import unused_model_keys

MILLION = 1e6

PLAN_CONVENTION = (
    "model FLOPs: matmuls and attention, causal attention at half, LM head counted, lookup not, "
    "against the bf16 peak; HFU adds recomputation"
)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Decisions behind a result.

    dropped: dimension, size, axis and shards where a dimension is replicated as it is too small.
    placement_given: True if the user gave the placement, False if it was searched for.
    network: the mode of the network, `flows` or `hops`.
    unread: names of `save` and `offload` that are not saved, as no backward pass reads them.
    trained: the step is one of training; otherwise its forward pass alone.
    """

    dropped: tuple[tuple[str, int, str, int], ...] = ()
    placement_given: bool = False
    network: str = "flows"
    unread: tuple[str, ...] = ()
    trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanResult(Result):
    """One step of a model under a plan.

    tokens: of the step, all devices together.
    implicit_reshardings: collectives that no rule or annotation requires, as (kind over axes,
        tensor, times per step).
    input: what the hosts did to feed it, if it has an input pipeline.
    retried: simulates another plan in its place, for `warnings`; returns the seconds of its step.
    """

    adviser_command: ClassVar[str] = "tpusim advise"
    model: Architecture
    plan: Plan
    tokens: int
    implicit_reshardings: tuple[tuple[str, str, int], ...]
    verdicts: Verdicts
    input: InputUse | None = None
    retried: Callable[[Any, Plan], float | None] | None = field(
        default=None, repr=False, compare=False
    )

    def __str__(self) -> str:
        return summary(self)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the model's FLOP/s over the bf16 peak."""
        return float(self.flops.model) / self.peak_flops / self.step_time_s

    @property
    def features(self) -> RunFeatures:
        """What the plan has in common with measured runs, or not."""
        dtypes = self.plan.dtypes
        return RunFeatures(
            chip=self.pod.chip.generation,
            style=self.plan.compiler.style,
            experts=self.model.has_experts,
            quantised=dtypes.matmul in NARROW_DTYPES,
            pipelined=bool(self.plan.active_schedule),
            params=float(self.model.parameter_count),
            step_s=self.step_time_s,
            mfu=self.mfu,
            exposed=self.exposed_s / self.step_time_s,
            vector=self.breakdown_s.get("vector", 0.0) / self.step_time_s,
            attention=self.breakdown_s.get("attention", 0.0) / self.step_time_s,
            transformer=self.model.measured,
        )

    @property
    def error_range(self) -> ErrorRange | None:
        """The range of measured over predicted time, from measured runs like this one.

        Those of a calibration count too. None under the lowering `ideal`, as no run is compiled
        perfectly; and for a forward pass alone, slow or broken parts of a slice, and steps that
        wait for their input, as no measured run is known to have had any.
        """
        starved = self.input is not None and self.input.starved_by
        known = self.plan.compiler.lowering == "xla" and self.verdicts.trained
        if not known or self.pod.impaired or starved:
            return None
        learnt = self.pod.chip.calibration
        return expected_range(self.features, learnt.steps if learnt else ())

    @property
    def reported_temp_bytes(self) -> float:
        """`temp_size_in_bytes` of the step's `memory_analysis()`, see `reported_heap`."""
        return reported_heap(self.program)

    @property
    def reported_hbm_bytes(self) -> float:
        """HBM of a device that `memory_analysis()` adds up to, as MaxText prints it.

        Arguments, among them all outputs of a step that donates its state, and temporaries.
        """
        return resident_bytes(self.program) + self.reported_temp_bytes

    @property
    def hbm_odds(self) -> HbmOdds | None:
        """The odds that it fits, from compiled plans like this one.

        None under the lowering `ideal`, as no program is compiled perfectly.
        """
        return hbm_odds(self.hbm_features) if self.plan.compiler.lowering == "xla" else None

    @property
    def hbm_features(self) -> HbmFeatures:
        """What the plan has in common with those whose HBM was compared with the compiler's."""
        return hbm_features(
            self.model,
            self.plan,
            self.pod,
            fill=self.hbm_peak_bytes / self.hbm_bytes,
            trained=self.verdicts.trained,
        )

    @property
    def fit(self) -> Fit:
        """The verdict on the peak, by its odds: borderline where they leave it open."""
        odds = self.hbm_odds
        if odds is None:
            return fit_of(self.hbm_peak_bytes, self.hbm_bytes)
        return fit_of_odds(odds.fits, self.hbm_peak_bytes, self.hbm_bytes)

    @property
    def placement_given(self) -> bool:
        """True if the user gave the placement; otherwise it is the best of the candidates."""
        return self.verdicts.placement_given

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, all chips together."""
        return self.tokens / self.step_time_s

    @property
    def examples_per_s(self) -> float:
        """Examples (sequences, images) per second, all chips together."""
        batch = self.plan.global_batch if self.verdicts.trained else self.plan.microbatch
        return batch / self.step_time_s

    @property
    def throughput(self) -> str:
        """Tokens per second of a model that reads text, examples per second of another."""
        return f"{self._reads_per_s:,.0f} {self._reads}/s"

    @property
    def throughput_range(self) -> str:
        """The ends of the throughput to three digits, in words; empty without `error_range`."""
        if self.error_range is None:
            return ""
        ends = self.error_range.of_rate(self._reads_per_s)
        low, high = (f"{float(f'{end:.3g}'):,.0f}" for end in ends)
        return f"{low} to {high} {self._reads}/s"

    @property
    def _reads(self) -> str:
        return "tokens" if self.model.reads_text else "examples"

    @property
    def _reads_per_s(self) -> float:
        return self.tokens_per_s if self.model.reads_text else self.examples_per_s

    @property
    def unit_cost(self) -> UnitCost | None:
        """Dollars for a million tokens or examples; None where the chip has no price."""
        seconds, unit = MILLION / self._reads_per_s, f"million {self._reads}"
        return UnitCost.of(self.pod, seconds, unit, self.error_range)

    @property
    def measured_mfu(self) -> MeasuredMfu | None:
        """The MFUs of published runs on the chip, of its kind and size if there are enough."""
        return measured_mfu(self.features) if self.verdicts.trained else None

    @property
    def tflops_per_device(self) -> float:
        """Model TFLOP/s of one device, as MaxText logs them."""
        return float(self.flops.model) / self.pod.devices / self.step_time_s / 1e12

    @property
    def bubble(self) -> float:
        """The fraction of the step that a pipeline loses, the mean of all stages.

        A stage waits in it, which is `bubble` in the breakdown. A circular pipeline computes what
        is never read instead, and its breakdown has that by the kind of work, as a profile does.
        """
        plan = self.plan
        if plan.active_schedule != CIRCULAR:
            return self.breakdown_s.get(BUBBLE_LABEL, 0.0) / self.step_time_s
        lost = sum(unread_ps(self.program, self.shown, plan.stages, plan.microbatches))
        return lost / plan.stages / self.timeline.total_ps

    def warnings(self) -> tuple[StepWarning, ...]:
        """Return what the step loses to its sharding, where that is much."""
        if not self.verdicts.trained:
            return ()
        resharded = bool(self.implicit_reshardings)
        return step_warnings(
            self, self.model, self.plan, resharded=resharded, retry=self._step_time_of
        )

    def _step_time_of(self, plan: Plan) -> float | None:
        """Return the seconds of a step of another plan; None if it cannot be simulated."""
        return None if self.retried is None else self.retried(self, plan)

    @property
    def convention(self) -> str:
        """The convention by which FLOPs are the model's, in words."""
        return PLAN_CONVENTION

    @property
    def rates(self) -> str:
        """Utilisation, throughput, and FLOP/s of a device, in words."""
        return (
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}, {self.throughput}, "
            f"{self.tflops_per_device:.1f} TFLOP/s per device"
        )

    def tables(self) -> Iterator[object]:
        """Yield the classes of devices, where they differ."""
        if (classes := stragglers(self)) is not None:
            yield classes

    def called(self, op: Single) -> str:
        """Return the name of an operation, which consists of the model's names."""
        return op.name

    @property
    def pipeline(self) -> str:
        """The schedule, the time that stages lose, and the fullest stage, in words."""
        plan, schedule = self.plan, self.plan.active_schedule
        if not schedule:
            return ""
        parts = plan.pipeline.virtual_stages
        chunks = f" x {parts} parts" if parts > 1 else ""
        what = f"{schedule}, {plan.stages} stages{chunks}, {plan.microbatches} microbatches"
        if schedule != CIRCULAR:
            return f"{what}: bubble {self.bubble:.1%} of the step; stage {self.lane} holds most HBM"
        idle, iterations = iterations_of(self.program)
        lost = f"{idle} of {iterations} trips compute what nobody reads"
        return f"{what}: {lost}, {self.bubble:.1%} of the step"

    @property
    def _trained_count(self) -> int | None:
        """The number of weights that are trained, where the plan names some or has adapters."""
        if not (self.plan.trainable or self.plan.adapters.rank):
            return None
        return planned_graph(self.model, self.plan).trained_count

    def about(self) -> Iterator[tuple[str, str]]:
        """Yield the plan, the placement, and the network unless it is the default."""
        alone = "" if self.verdicts.trained else "; its forward pass alone"
        yield "plan", f"{self.plan}{alone}"
        if self._trained_count is not None:
            share = self._trained_count / self.model.parameter_count
            count, whole = map(format_count, (self._trained_count, self.model.parameter_count))
            yield "trains", f"{count} weights, {share:.2%} of the {whole} of the model"
        chosen = "given" if self.placement_given else "chosen"
        placed = f"{self.placement} ({chosen})" if self.placement.written else "nothing to place"
        yield "placement", placed
        if self.verdicts.network != "flows":
            yield "network", f"{self.verdicts.network}: every message over every link"
        if self.input is not None:
            yield "input", str(self.input)

    def defaults(self) -> tuple[tuple[str, str], ...]:
        """Return keys that have their defaults and decide, each with what it means, in words."""
        return tuple(deciding_defaults(self.model, self.plan, fed=self.input is not None))

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield settings without effect, replicated dimensions and implicit resharding."""
        return (("note", text) for text in self._remarks())

    def _remarks(self) -> Iterator[str]:
        if self.verdicts.unread:
            yield f"not saved, as no backward pass reads it: {', '.join(self.verdicts.unread)}"
        if self.verdicts.trained:
            yield from unused_keys(self.model, self.plan)
            yield from unused_model_keys(self.model, self.plan)
            yield from unmoved_keys(
                self.model, self.plan, self.pod, self.placement, tuple(self.programs)
            )
        for dim, size, axis, shards in self.verdicts.dropped:
            yield f"{dim} ({size}) is smaller than {axis} ({shards}): replicated over it"
        yield from borrowed_notes(
            choices_of(self.plan), self.pod, self.placement, collective_axes(self.programs)
        )
        yield from self.pod.chip.unsaid(
            "no buffer of a step is kept on the chip, and permutes are asynchronous on every slice"
        )
        if self.input is not None and self.pod.chip.host_bytes is None:
            held = format_bytes(self.input.held_bytes)
            yield (
                f"the input holds {held} on each host; the memory of hosts of {self.pod.chip.name} "
                "is not known, so whether it has room is not checked"
            )
        groups: dict[tuple[str, int], list[str]] = {}
        for what, tensor, times in self.implicit_reshardings:
            groups.setdefault((what, times), []).append(tensor)
        for (what, times), tensors in groups.items():
            yield f"implicit {what} of {', '.join(tensors)} ({times} per step)"

    def facts(self) -> Mapping[str, Any]:
        """Return model, plan, and what follows from them."""
        trained = self._trained_count
        return {
            "like_measured": None if self.error_range is None else self.error_range.measured,
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_device": self.tflops_per_device,
            "model": self.model.flat()
            | {"parameters": self.model.parameter_count}
            | ({} if trained is None else {"trained_parameters": trained}),
            "plan": _plan_document(self.plan.flat()),
            "network": self.verdicts.network,
            **({} if self.input is None else {"input": self.input.facts()}),
            "replicated": [_named(entry) for entry in self.verdicts.dropped],
            "unasked": [
                {"collective": what, "tensor": tensor, "count": count}
                for what, tensor, count in self.implicit_reshardings
            ],
        }


def pipelined(result: Result) -> PlanResult | None:
    """Return the result itself if it is of a plan with a pipeline, else None."""
    return result if isinstance(result, PlanResult) and result.plan.active_schedule else None


def _named(entry: tuple[str, int, str, int]) -> dict[str, Any]:
    return dict(zip(("dimension", "size", "axis", "shards"), entry, strict=True))


def _plan_document(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the flat keys of a plan as JSON; switched-off passes only if there are any."""
    document: dict[str, Any] = _plain(keys)
    if not document["without_passes"]:
        del document["without_passes"]
    return document


def _plain(value: Any) -> Any:
    """Return mappings and sequences of any kind as those of JSON."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
