"""Synthetic measurements: steps and profiles of a chip with known factors, and noise on top."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

import tpusim as ts
from tpusim.calibration.measured_steps import TrialFactors
from tpusim.calibration.profiled_steps import ProfiledSteps
from tpusim.compiler import Compiled, translate_compiled
from tpusim.hardware import FACTORS, Slice, least_factor, load_chip
from tpusim.runfile import Measured, SimulationRun

CHIP, POD = "v5p", Slice("v5p", "4x4x4")
SMALL = ts.models.Transformer(name="small", embed=1024, mlp=4096, heads=8, layers=8, vocab=32000)
LARGE = ts.models.Transformer(name="large", embed=4096, mlp=16384, heads=32, layers=8, vocab=32000)
SPARSE = SMALL.replace(name="sparse", experts=8, experts_per_token=2)

PLANS = (
    (LARGE, {"fsdp": 64}, 2048, 256),
    (LARGE, {"data": 64}, 2048, 128),
    (LARGE, {"fsdp": 16, "tensor": 4}, 2048, 128),
    (LARGE, {"fsdp": 64}, 16384, 64),
    (LARGE, {"data": 4, "fsdp": 16}, 1024, 64),
    (SMALL, {"data": 64}, 512, 64),
    (SMALL, {"fsdp": 64}, 2048, 1024),
    (SMALL, {"data": 64}, 8192, 64),
    (SPARSE, {"fsdp": 8, "expert": 8}, 2048, 256),
    (SPARSE, {"fsdp": 64}, 2048, 512),
)
"""Model, mesh, sequence length and batch of ten steps."""

NOISE, KERNEL_NOISE = 0.02, 0.08
"""Standard deviation of a step's logarithm, and of what is wrong with each operation."""


def true_factors(seed: int, spread: float = 0.12) -> dict[str, float]:
    """Random factors of a chip, none beyond its physical bound."""
    drawn = np.random.default_rng(seed).normal(0.0, spread, len(FACTORS))
    costs = load_chip(CHIP).costs
    return {
        name: max(float(np.exp(log)), least_factor(name, costs))
        for name, log in zip(FACTORS, drawn, strict=True)
    }


def trial_of(truth: Mapping[str, float]) -> TrialFactors:
    return TrialFactors(tuple(float(np.log(truth.get(name, 1.0))) for name in FACTORS))


def ten_steps(seed: int) -> tuple[dict[str, float], list[SimulationRun]]:
    """The factors of a chip, and ten measured steps on it."""
    truth = true_factors(seed)
    pod, rng = trial_of(truth).pod(POD), np.random.default_rng(seed + 10**6)
    runs = []
    for number, (model, mesh, length, batch) in enumerate(PLANS):
        plan = ts.Plan(mesh=mesh, seq_len=length, global_batch=batch, remat="minimal")
        step = ts.simulate(model, plan, pod).step_time_s * float(np.exp(rng.normal(0, NOISE)))
        measured = Measured(step_s=step)
        runs.append(SimulationRun(f"step{number}.toml", model, plan, POD, measured=measured))
    return truth, runs


@cache
def _program(path: Path, pod: Slice) -> ProfiledSteps:
    translated = translate_compiled(Compiled(name="step", data=path.read_bytes()), pod)
    return ProfiledSteps({}, translated.program, translated.pod, translated.placement)


def ten_profiled_steps(seed: int, path: Path, pod: Slice) -> tuple[dict[str, float], ProfiledSteps]:
    """The factors of a chip, and the mean of ten steps of a compiled program on it.

    Each operation is off by a factor of its own, and each execution by another.
    """
    truth, rng = true_factors(seed), np.random.default_rng(seed + 10**6)
    about = _program(path, pod)
    exact = {name: s for name, (s, _) in about._predicted(trial_of(truth)).items() if s > 0}
    measured = {
        name: seconds
        * float(np.exp(rng.normal(0, KERNEL_NOISE)) * np.exp(rng.normal(0, NOISE, 10)).mean())
        for name, seconds in exact.items()
    }
    return truth, replace(about, measured=measured)
