"""`result.json`: the result as plain data, in SI units and fractions."""

from dataclasses import asdict
from typing import Any

from tpusim import __version__
from tpusim.lines import Line, explain_lines
from tpusim.plan_result import PlanResult
from tpusim.program import Pass
from tpusim.result import PICO, Result
from tpusim.stages import StageUse, stage_uses
from tpusim.summary import infeasible_reason


def document(result: Result, ideal: Result | None = None) -> dict[str, Any]:
    """What `result.json` holds; the keys of the first block are stable.

    Seconds, bytes of one device, tokens a second of all chips, FLOPs of all devices, fractions.
    `reason` is null, or why the plan is infeasible. `ideal_step_time_s` is the step time under the
    lowering `ideal` (null when it was not simulated).
    """
    common: dict[str, Any] = {
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "hfu": result.hfu,
        "hbm_peak_bytes": result.hbm_peak_bytes,
        "hbm_bytes": result.hbm_bytes,
        "fits": result.fits,
        "breakdown_s": result.breakdown_s,
        "tokens_per_s": None,
        "reason": None if result.fits else infeasible_reason(result),
        "exposed_s": result.exposed_s,
        "ideal_step_time_s": ideal.step_time_s if ideal else None,
        "phases_s": result.phases_s,
        "tflops_per_device": None,
        "memory_bytes": result.memory_bytes,
        "link_use": result.link_use,
        "flops": {kind: float(count) for kind, count in asdict(result.flops).items()},
        "convention": result.convention,
        "model": None,
        "slice": _slice(result),
        "plan": None,
        "placement": {"given": result.placement_given, "axes": _placement(result)},
        "network": "flows",
        "pipeline": _pipeline(result.pipelined),
        "replicated": [],
        "unasked": [],
        "versions": {"tpusim": __version__},
    }
    return common | dict(result.facts()) | _lines(result)


def _lines(result: Result) -> dict[str, Any]:
    """Where a compiled program's step goes by line of code; a plan has scopes of its own."""
    if result.planned:
        return {}
    return {
        "lines": [
            {
                "line": line.place,
                **_line(line),
                "library": [_library(each) for each in line.library],
            }
            for line in explain_lines(result).rows
        ]
    }


def _library(row: Line) -> dict[str, Any]:
    """A line of a package; empty for what the line that calls it does itself."""
    return {"line": row.place, "function": row.function, **_line(row)}


def _line(row: Line) -> dict[str, Any]:
    return {
        "scope": row.scope,
        "seconds": row.seconds,
        "does_s": row.does_s,
        "phases_s": {str(phase): seconds for phase, seconds in row.phases_s.items()},
    }


def _pipeline(result: PlanResult | None) -> dict[str, Any] | None:
    """Of a pipeline: the schedule, its bubble, the fullest stage, and what each stage does."""
    if result is None:
        return None
    plan = result.plan
    return {
        "schedule": plan.pipeline,
        "stages": plan.stages,
        "virtual_stages": plan.virtual_stages,
        "microbatches": plan.microbatches,
        "bubble": result.bubble,
        "fullest_stage": result.lane if len(result.programs) > 1 else None,
        "each": [_stage(use) for use in stage_uses(result)],
    }


def _stage(use: StageUse) -> dict[str, Any]:
    """One stage: seconds of one slot of each kind on average, and of the step."""
    slots = {f"{kind.name.lower()}_s": use.mean_ps(kind) * PICO for kind in Pass}
    return {
        "layers": sum(use.layers),
        "besides": use.besides,
        **slots,
        "bubble_s": use.bubble_ps * PICO,
        "exposed_send_s": use.sent_ps * PICO,
        "hbm_peak_bytes": use.hbm_peak_bytes,
    }


def _slice(result: Result) -> dict[str, Any]:
    pod = result.pod
    return {
        "chip": pod.chip.name,
        "topology": "x".join(map(str, pod.topology.dims)),
        "twisted": pod.topology.twisted,
        "num_slices": pod.num_slices,
        "dcn_oversubscription": pod.dcn_oversubscription,
        "chips": pod.chips,
        "devices": pod.devices,
    }


def _placement(result: Result) -> dict[str, Any]:
    return {
        axis: [{"dimension": str(span), "size": span.size, "stride": span.stride} for span in spans]
        for axis, spans in result.placement.axes
    }
