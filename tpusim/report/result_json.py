"""`result.json`: the result as plain data, in SI units and fractions."""

from dataclasses import asdict
from typing import Any

from tpusim import __version__
from tpusim.hardware import Calibration
from tpusim.program import PassKind
from tpusim.results import (
    PICO,
    PlanResult,
    Result,
    StageUse,
    pipelined,
    stragglers,
    verdict_reason,
)
from tpusim.results.stage_uses import stage_uses


def document(
    result: Result, ideal: Result | None = None, maxtext: Result | None = None
) -> dict[str, Any]:
    """Return the content of `result.json`; the keys of the first block are stable.

    Seconds, bytes of one device, tokens per second of all chips, FLOPs of all devices, fractions.
    `fit` is `fits`, `borderline` or `does not fit`; `reason` is null unless `fits` is false.
    `fit_odds` is the fraction of compared plans like it that fit, `hbm_peak_range_bytes` what the
    compiler takes in 90 % of them, and `hbm_unlike` what no compared plan had; null without odds.
    `ideal_step_time_s` is the step time under the lowering `ideal`, `maxtext_step_time_s` that of
    the same plan as a program of MaxText (null if they were not simulated).
    `measured_mfu` has the ends of the MFUs of published runs like it, `unit_cost` the dollars for a
    million tokens or examples, or a thousand steps; null if not known. `reasons` says why the step
    takes as long as it does, with changes that were simulated.
    `to_fit` has the changes with which a plan that does not fit does, null for others.
    The ranges are two numbers, the smaller first, or null; `like_measured` is false where nothing
    like the run was measured.
    """
    ways = result.ways_to_fit()
    common: dict[str, Any] = {
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "hfu": result.hfu,
        "hbm_peak_bytes": result.hbm_peak_bytes,
        "hbm_bytes": result.hbm_bytes,
        "fits": result.fits,
        "breakdown_s": result.breakdown_s,
        "tokens_per_s": None,
        "reason": None if result.fits else verdict_reason(result),
        "fit": str(result.fit),
        **_odds(result),
        "to_fit": None if ways is None else ways.facts(),
        "exposed_s": result.exposed_s,
        "step_time_range_s": _pair(result.step_time_range_s),
        "mfu_range": _pair(result.mfu_range),
        "measured_mfu": None if (like := result.measured_mfu) is None else like.facts(),
        "unit_cost": None if (cost := result.unit_cost) is None else cost.facts(),
        "like_measured": None,
        "ideal_step_time_s": ideal.step_time_s if ideal else None,
        "maxtext_step_time_s": maxtext.step_time_s if maxtext else None,
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
        "pipeline": _pipeline(pipelined(result)),
        "replicated": [],
        "unasked": [],
        "defaults": [key for key, _ in result.defaults()],
        "reasons": [reason.facts() for reason in result.reasons()],
        "warnings": [warning.facts() for warning in result.warnings()],
        "versions": {"tpusim": __version__},
    }
    return common | _classes(result) | dict(result.facts())


def _odds(result: Result) -> dict[str, Any]:
    """Return the odds that it fits, the range of its HBM, and what no compared plan had."""
    found = result.hbm_odds
    return {
        "fit_odds": found.fits if found else None,
        "hbm_peak_range_bytes": list(found.of(result.hbm_peak_bytes)) if found else None,
        "hbm_unlike": list(found.unlike) if found else None,
    }


def _classes(result: Result) -> dict[str, Any]:
    """Return the classes of devices, where they differ: waits in seconds by class waited for."""
    found = stragglers(result)
    if found is None:
        return {}
    rows = [
        {
            "like": row.name,
            "devices": row.devices,
            "waits_s": {name: ps * PICO for name, ps in row.waits},
        }
        for row in found.rows
    ]
    return {"classes": rows}


def _pair(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else list(ends)


def _pipeline(result: PlanResult | None) -> dict[str, Any] | None:
    """Return schedule, bubble, fullest stage and stages of a pipeline; None without one."""
    if result is None:
        return None
    plan = result.plan
    return {
        "schedule": plan.active_schedule,
        "stages": plan.stages,
        "virtual_stages": plan.pipeline.virtual_stages,
        "microbatches": plan.microbatches,
        "bubble": result.bubble,
        "fullest_stage": result.lane if len(result.programs) > 1 else None,
        "each": [_stage(use) for use in stage_uses(result)],
    }


def _stage(use: StageUse) -> dict[str, Any]:
    """Return one stage: mean seconds of a slot of each kind, and seconds of the step."""
    slots = {f"{kind.name.lower()}_s": use.mean_ps(kind) * PICO for kind in PassKind}
    return {
        "layers": sum(use.layers),
        "besides": use.besides,
        **slots,
        "bubble_s": use.bubble_ps * PICO,
        "exposed_send_s": use.send_wait_ps * PICO,
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
        "clock_hz": pod.chip.clock,
        "chips": pod.chips,
        "devices": pod.devices,
        **({"slow": pod.slow.written} if pod.slow else {}),
        **({"broken": pod.broken.written} if pod.broken else {}),
        **({"calibration": _calibration(found)} if (found := pod.chip.calibration) else {}),
    }


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "file": found.name,
        "learnt_from": list(found.learnt_from),
        "date": found.date,
        "factors": {name: asdict(factor) for name, factor in found.factors},
    }


def _placement(result: Result) -> dict[str, Any]:
    return {
        axis: [{"dimension": str(span), "size": span.size, "stride": span.stride} for span in spans]
        for axis, spans in result.placement.axes
    }
