"""Profiles with one known fault each: it is the first sentence of their diagnosis."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from extent import sample
from synthetic_profiles import Fault, synthetic_profile

import tpusim as ts
from tpusim.compiler import Compiled, load
from tpusim.hardware import Chip, Slice

pytest.importorskip("jaxlib", reason="replaying HLO needs the extra `xla`")

HLO = Path(__file__).parents[2] / "data" / "hlo"
DECODER, FSDP, MIXTURE = "decoder_v4_2x2x1", "decoder_v5p_2x2x1", "moe_v6e_4x4"
CONVOLUTIONS, DECODE = "convolution_v3_2x2", "decode_v5e_2x4"
NOISE = 0.02
MXU = r"(matmuls|convolutions|operations bound by MXU) take 1\."


@dataclass(frozen=True)
class Case:
    """A program, what is wrong, and a pattern of the beginning of the first sentence."""

    program: str
    said: str
    faults: tuple[Fault, ...] = ()
    chip: Callable[[Chip], Chip] | None = None
    clock: float = 1.0
    label: str = ""
    own: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def slow_hbm(chip: Chip) -> Chip:
    return replace(chip, hbm_bandwidth=0.6 * chip.hbm_bandwidth)


def slow_links(chip: Chip) -> Chip:
    return replace(chip, ici_bandwidth=0.3 * chip.ici_bandwidth)


def step(amount: float, where: int) -> tuple[Fault, ...]:
    return (Fault("straggling_step", amount, where),)


CASES = {
    "link, tensor": Case(DECODER, "collectives over tensor are exposed for",
                         (Fault("slow_link", 2.5, what="tensor"),)),
    "link, fsdp of two axes": Case(DECODER, "collectives over fsdp are exposed for",
                                   (Fault("slow_link", 2.0, what="fsdp"),)),
    "link, expert": Case(MIXTURE, "collectives over expert are exposed for",
                         (Fault("slow_link", 2.0, what="expert"),)),
    "link, all": Case(FSDP, "collectives over fsdp are exposed for", chip=slow_links),
    "link, axes without names": Case(FSDP, "collectives over x,y are exposed for",
                                     chip=slow_links, own=True),
    "step, first": Case(DECODER, "step 1 of 8 takes 1.", step(1.4, 0)),
    "step, in the middle": Case(FSDP, "step 5 of 8 takes 1.", step(1.25, 4)),
    "step, last": Case(MIXTURE, "step 8 of 8 takes 1.", step(2.0, 7)),
    "steps, two": Case(DECODE, "2 of 8 steps take up to 1.", (*step(1.3, 2), *step(1.5, 6))),
    "device, first": Case(DECODER, "TPU:0 works for", (Fault("slow_chip", 1.15, 0),)),
    "device, other": Case(FSDP, "TPU:2 works for", (Fault("slow_chip", 1.3, 2),)),
    "input": Case(FSDP, "devices wait 1", (Fault("starved_input", 1e-3),)),
    "input, short": Case(DECODER, "devices wait 5", (Fault("starved_input", 5e-4),)),
    "host, once": Case(FSDP, "1 of 7 pauses between steps is late",
                       (Fault("host_gap", 4e-3, 3),)),
    "host, twice": Case(DECODER, "2 of 7 pauses between steps are late",
                        (Fault("host_gap", 4e-3, 3), Fault("host_gap", 6e-3, 5))),
    "HBM, decoding": Case(DECODE, "operations bound by HBM take 1.", chip=slow_hbm),
    "HBM, convolutions": Case(CONVOLUTIONS, "operations bound by HBM take 1.", chip=slow_hbm),
    "HBM, decoder": Case(FSDP, "operations bound by HBM take 1.", chip=slow_hbm),
    "kernel": Case(DECODER, "matmul `fusion.", (Fault("slow_operation", 3.0, what=""),)),
    "attention": Case(FSDP, "attention kernels take 1.", label="attention"),
    "matmuls": Case(DECODER, "matmuls take 1.", label="matmul"),
    "matmuls, own replay": Case(FSDP, "matmuls take 1.", label="matmul", own=True),
    "clock": Case(CONVOLUTIONS, MXU, clock=0.8),
    "clock, decoder": Case(DECODER, MXU, clock=0.8),
    "a trace": Case(DECODER, "matmuls take 1.", label="matmul", options={"form": "trace"}),
}  # fmt: skip


@cache
def program(name: str) -> Compiled:
    return load(HLO / f"{name}.hlo.gz")


@cache
def healthy(name: str) -> ts.ReplayResult:
    return ts.simulate(program(name))


def longest_matmul(result: ts.ReplayResult) -> str:
    records = [each for each in result.timeline.tasks if each.label == "matmul"]
    return max(records, key=lambda each: each.total_ps).name


def profile_of(case: Case, seed: int) -> bytes:
    """The profile of a step with a fault of the machine, or of what happens on it."""
    compiled, result = program(case.program), healthy(case.program)
    faults = tuple(
        each if each.kind != "slow_operation" else replace(each, what=longest_matmul(result))
        for each in case.faults
    )
    pod, chip = result.pod, result.pod.chip
    if case.chip is not None:
        result = ts.simulate(compiled, pod=pod.changed(chip=case.chip(chip)))
    if case.clock != 1:
        slower = Slice(chip, pod.topology.dims, clock=case.clock * chip.clock)
        result = ts.simulate(compiled, pod=slower)
    return synthetic_profile(
        result, compiled, steps=8, devices=4, noise=NOISE, seed=seed, faults=faults,
        factor=lambda record: 1.2 if record.label == case.label else 1.0, **case.options,
    )  # fmt: skip


@pytest.mark.parametrize("program", sample([DECODER, FSDP, MIXTURE, CONVOLUTIONS, DECODE], 5))
def test_without_a_fault_no_cause_is_large(program: str, tmp_path: Path) -> None:
    """Jitter alone lengthens waits, by less than 3 % of the step."""
    path = tmp_path / "step.xplane.pb"
    path.write_bytes(profile_of(Case(program, ""), seed=1))
    found = ts.diagnose(path, healthy(program))
    assert all(abs(each.picoseconds) < 0.03 * found.measured_ps for each in found.findings)


@pytest.mark.thorough
def test_a_fault_is_found_against_a_plan_too(tmp_path: Path) -> None:
    """The plan of the same model has other operations, which differ by less than the fault."""
    path, pod = tmp_path / "step.xplane.pb", healthy(FSDP).pod
    path.write_bytes(profile_of(Case(FSDP, "", (Fault("slow_link", 3.0),)), seed=1))
    model = ts.models.Transformer(
        layers=3, embed=1024, mlp=4096, heads=8, kv_heads=4, head_dim=128, vocab=4096
    )
    plan = ts.simulate(model, ts.Plan(mesh={"fsdp": 4}, seq_len=512, global_batch=16), pod)
    (first, *_) = ts.diagnose(path, plan).findings
    assert first.text.startswith("collectives over fsdp are exposed for")


@pytest.mark.parametrize("name", sample(CASES, 12))
def test_the_fault_is_the_first_sentence(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "step.xplane.pb"
    path.write_bytes(profile_of(case, seed=len(name)))
    result = healthy(case.program)
    found = ts.diagnose(path, pod=result.pod) if case.own else ts.diagnose(path, result)
    assert re.match(case.said, found.findings[0].text)
    for parts in (found.by_kind, found.by_layer, found.by_line, found.by_axis, found.by_operation):
        assert parts["measured_ps"].sum() == found.measured_ps
        assert parts["predicted_ps"].sum() == found.predicted_ps
        assert parts["difference_ps"].sum() == found.measured_ps - found.predicted_ps
