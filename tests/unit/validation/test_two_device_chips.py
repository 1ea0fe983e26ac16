"""Runs on chips of two devices, whose sources count chips, devices or cores."""

from typing import Any

import pandas as pd
import pytest

import tpusim as ts
from tpusim.hardware import DIE, load_chip
from tpusim.results.result import Result
from tpusim.simulation import simulate
from tpusim.validation import MeasuredRun, RunOutcome
from tpusim.validation.outcome import simulate_run
from tpusim.validation.run_setup import set_up

MODEL: dict[str, object] = {
    "n_layers": 2, "d_model": 512, "n_heads": 4, "d_ff": 2048, "vocab": 1000, "seq_len": 128,
    "global_batch": 1024, "step_s": 1.0, "framework": "maxtext", "optimizer": "adamw",
    "attention": "flash", "params_b": 0.0095,
}  # fmt: skip
ROWS: dict[str, tuple[str, str, str, str]] = {
    "v3-device": ("v3", "16x16", "fsdp=512", "device"),
    "v3-core": ("v3", "16x16", "fsdp=512", "core"),
    "v3-unsaid": ("v3", "16x16", "fsdp=512", ""),
    "v3-chip": ("v3", "16x16", "fsdp=256", "chip"),
    "v3-chip-unsaid": ("v3", "16x16", "fsdp=256", ""),
    "v3-devices-called-chips": ("v3", "16x16", "fsdp=512", "chip"),
    "v3-cores-in-the-shape": ("v3", "16x16x2", "fsdp=512", "device"),
    "v3-tensor": ("v3", "16x16", "fsdp=16;tensor=32", "device"),
    "v2": ("v2", "4x4", "data=4;fsdp=8", "device"),
    "7x": ("7x", "4x4x4", "fsdp=128", "device"),
    "7x-chip": ("7x", "4x4x4", "fsdp=64", "chip"),
}
"""chip, topology, mesh, mesh_counts."""


def row(name: str, **changes: object) -> dict[str, Any]:
    chip, topology, mesh, counts = ROWS[name]
    place = {"chip": chip, "topology": topology, "mesh": mesh, "mesh_counts": counts}
    return {"id": name, **MODEL, **place, **changes}


def one(name: str, **changes: object) -> RunOutcome:
    return simulate_run(MeasuredRun(**row(name, **changes)))


def simulated(name: str) -> Result:
    given = set_up(MeasuredRun(**row(name)))
    return simulate(given.model, given.plan, given.pod)


def test_a_table_of_all_of_them_runs() -> None:
    table = pd.DataFrame([row(name) for name in ROWS])
    validation = ts.validate(table)
    assert validation.failed == 0
    assert len(validation.frame) == len(ROWS)
    assert validation.frame["fits"].all()


SAME = [name for name in ROWS if name.startswith("v3-") and name not in ("v3-device", "v3-tensor")]


@pytest.mark.parametrize("name", SAME)
def test_however_it_is_counted_it_is_the_same_run(name: str) -> None:
    same, meant = one(name), one("v3-device")
    assert (same.predicted_s, same.mfu) == (meant.predicted_s, meant.mfu)
    assert same.hbm_peak_bytes == meant.hbm_peak_bytes
    assert (len(same.notes) > len(meant.notes)) == (name not in ("v3-core", "v3-unsaid"))


def test_7x_may_count_chips_too() -> None:
    assert one("7x").predicted_s == one("7x-chip").predicted_s


@pytest.mark.parametrize(
    ("name", "chips"), [("v3-device", 256), ("v3-chip", 256), ("v2", 16), ("7x", 64)]
)
def test_rates_are_of_chips_and_memory_of_devices(name: str, chips: int) -> None:
    result = simulated(name)
    chip = load_chip(ROWS[name][0])
    assert result.peak_flops == chips * chip.flops["bf16"]
    assert result.hbm_bytes == chip.hbm_usable_bytes / 2
    assert result.tokens == 1024 * 128
    second = result.flops.model / result.step_time_s
    assert result.mfu == pytest.approx(second / (chips * chip.flops["bf16"]))
    assert result.tflops_per_device == pytest.approx(second / (2 * chips) / 1e12)


@pytest.mark.parametrize("name", ["v3-device", "v3-tensor", "7x"])
def test_the_die_is_the_innermost_dimension_of_the_last_axis(name: str) -> None:
    placed = simulated(name).placement
    spans = placed.axes[-1][1]
    assert spans[-1].dim == DIE
    assert all(span.dim != DIE for _, others in placed.axes[:-1] for span in others)


@pytest.mark.parametrize("counted", [256, 512])
def test_the_number_of_chips_may_count_cores(counted: int) -> None:
    given = one("v3-device", num_chips=counted)
    assert given.predicted_s == one("v3-device").predicted_s
    assert ("num_chips taken as devices, two per v3 chip" in given.notes) == (counted == 512)


@pytest.mark.parametrize(
    ("mesh", "batch", "wide"),
    [
        ("data=16;fsdp=16", 1024, {"data": 16, "fsdp": 32}),
        ("data=256", 1024, {"data": 512}),
        ("data=16;tensor=16", 1024, {"data": 32, "tensor": 16}),
        ("data=256", 256, {"data": 256, "tensor": 2}),
        ("fsdp=64;tensor=4", 64, {"fsdp": 64, "tensor": 8}),
        ("tensor=256", 1, {"tensor": 512}),
    ],
)
def test_the_devices_of_a_chip_share_its_batch_or_else_its_heads(
    mesh: str, batch: int, wide: dict[str, int]
) -> None:
    given = set_up(MeasuredRun(**row("v3-chip", mesh=mesh, global_batch=batch)))
    assert given.plan.mesh == wide


def test_slices_are_counted_once() -> None:
    """Axes across slices count slices, and no devices."""
    two = set_up(MeasuredRun(**row("v3-chip", mesh="dcn_data=2;fsdp=256", num_slices=2)))
    assert two.plan.mesh == {"dcn_data": 2, "fsdp": 512}
    assert set_up(MeasuredRun(**row("v3-chip", chip="v4", topology="4x4x4", mesh="fsdp=64"))).plan


CONTRADICTIONS = [
    ("v3-device", {"mesh": "fsdp=256"}, "there are 512 devices of v3:16x16"),
    ("v3-chip", {"mesh": "fsdp=128"}, "there are 512 devices of v3:16x16"),
    ("v3-device", {"mesh_counts": "host"}, "mesh_counts is 'host'; valid are chip"),
    ("v3-device", {"num_chips": 1024}, "num_chips is 1024, but v3:16x16 has 256 chips (512 dev"),
    ("v3-device", {"topology": "16x16x4"}, "16x16x4"),
    ("v3-device", {"chip": "v4", "topology": "8x8x4x2"}, "8x8x4x2"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), CONTRADICTIONS)
def test_a_contradiction_is_a_sentence(name: str, changes: dict[str, Any], sentence: str) -> None:
    failed = one(name, **changes)
    assert failed.status == "error"
    assert sentence in failed.reason
