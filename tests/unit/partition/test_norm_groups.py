"""Batch norms over groups of examples: the devices that sum, what they sum, and wrong groups."""

import json
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

import tpusim as ts
from tpusim.base import ModelError, PlanError
from tpusim.models import SSD, MaskRCNN, ResNet
from tpusim.program import Collective, CollectiveKind, walk_ops

POD = ts.Slice("v4", "4x4x2")
SMALL = {"blocks": (1, 1), "strides": (1, 2), "image": 32, "classes": 10}
CHANNELS = 64 + (64 + 64 + 256 + 256) + (128 + 128 + 512 + 512)
"""Of the norms of the small network: stem, and two blocks with a shortcut each."""

SCRIPT = Path(__file__).parents[1] / "twin" / "run_exported.py"


def net(**keys: Any) -> ResNet:
    return ResNet(**{**SMALL, **keys})


def plan(mesh: dict[str, int], batch: int = 128, **keys: Any) -> ts.Plan:
    return ts.Plan(mesh=mesh, global_batch=batch, rules={"act_batch": list(mesh)}, **keys)


def sums(model: Any, given: ts.Plan, pod: ts.Slice = POD) -> list[Collective]:
    program = ts.simulate(model, given, pod).program
    return [
        op for op, _ in walk_ops(program.body)
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE
        and "_norm" in op.scope and not op.scope.startswith("d(")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "group", "axes"),
    [
        ({"data": 32}, 0, ("data",)),
        ({"data": 32}, 128, ("data",)),
        ({"data": 8, "group": 4}, 16, ("group",)),
        ({"data": 8, "group": 4}, 128, ("data", "group")),
        ({"data": 4, "near": 2, "group": 4}, 32, ("near", "group")),
        ({"data": 8, "group": 4}, 4, ()),
        ({"data": 8, "group": 4}, 2, ()),
        ({"data": 8, "group": 4}, 1, ()),
    ],
)
def test_the_devices_of_a_group_sum_two_numbers_a_channel_each_way(
    mesh: dict[str, int], group: int, axes: tuple[str, ...]
) -> None:
    """In f32; groups within a device sum nothing."""
    found = sums(net(norm_group=group), plan(mesh))
    assert {op.axes for op in found} == ({axes} if axes else set())
    moved = 2 * 2 * 4 * CHANNELS
    assert sum(op.bytes for op in found) == (moved if axes else 0)


def test_a_group_of_all_examples_is_a_batch_norm_and_of_one_device_its_own() -> None:
    mesh = {"data": 8, "group": 4}
    steps = {
        key: ts.simulate(net(**keys), plan(mesh), POD).step_time_s
        for key, keys in (
            ("all", {}), ("of all", {"norm_group": 128}), ("of four", {"norm_group": 16}),
            ("of one", {"norm_group": 4}), ("device", {"norm": "device"}),
        )
    }  # fmt: skip
    assert steps["all"] == steps["of all"]
    assert steps["of one"] == steps["device"]
    assert steps["device"] < steps["of four"] < steps["all"]


def test_sharded_positions_are_of_the_group() -> None:
    mesh = {"data": 4, "group": 4, "space": 2}
    given = ts.Plan(
        mesh=mesh, global_batch=64,
        rules={"act_batch": ["data", "group"], "act_height": "space"},
    )  # fmt: skip
    found = sums(net(norm_group=16), given)
    assert {frozenset(op.axes) for op in found} == {frozenset(("group", "space"))}
    within = sums(net(norm_group=4), given)
    assert {op.axes for op in within} == {("space",)}


@pytest.mark.parametrize("model", [SSD(norm_group=16), MaskRCNN(norm="batch", norm_group=16)])
def test_detectors_have_the_groups_of_their_backbone(model: Any) -> None:
    found = sums(model, plan({"data": 8, "group": 4}))
    assert {op.axes for op in found} == {("group",)}


@pytest.mark.parametrize(
    ("mesh", "group", "sentence"),
    [
        ({"data": 32}, 48, "norm_group is 48 examples, which do not divide the 128 of a step or"),
        ({"data": 16}, 32, 'with rules.act_batch = ["data", "group"]'),
        ({"data": 16}, 32, "those of 4 devices, which are not the last axes of the batch"),
        ({"data": 16}, 32, "divide data, mesh = { data = 4, group = 4 }"),
        (
            {"data": 8, "fsdp": 2},
            32,
            'mesh = { data = 4, group = 2 }, with rules.act_batch = ["data", "group", "fsdp"]',
        ),
    ],
)
def test_groups_that_do_not_divide_are_one_sentence(
    mesh: dict[str, int], group: int, sentence: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(sentence)):
        sums(net(norm_group=group), plan(mesh), ts.Slice("v4", "4x4x2" if prod(mesh.values()) == 32
                                                         else "2x2x4"))  # fmt: skip


def test_a_group_that_cuts_a_device_is_one_sentence() -> None:
    """Of 96 examples, 12 a device: 8 divide neither them, nor are they several devices'."""
    text = "norm_group is 8 examples, but a device has 12; write a multiple of 12, or a number that"
    with pytest.raises(PlanError, match=re.escape(text)):
        sums(net(norm_group=8), plan({"data": 8}, 96), ts.Slice("v4", "2x2x2"))


def test_only_batch_norms_have_groups() -> None:
    with pytest.raises(ModelError, match="norm_group is 16, but norm is 'device', which has no"):
        net(norm="device", norm_group=16)
    with pytest.raises(ModelError, match="norm_group is -1; it must be at least 0"):
        net(norm_group=-1)


@pytest.mark.thorough
def test_exported_gradients_are_those_of_one_device(tmp_path: Path) -> None:
    """Groups of four examples on two devices each; the statistics of all would be others."""
    pytest.importorskip("optax")
    f32 = {"dtype": "f32", "grad_dtype": "f32", "param_dtype": "f32", "optimizer": "momentum"}
    sharded = plan({"data": 4, "group": 2}, 16, **f32)
    files = []
    for name, given, pod in (
        ("sharded", sharded, "2x4"), ("whole", sharded.replace(mesh={"data": 1}, rules={}), "1x1")
    ):  # fmt: skip
        files.append(tmp_path / f"{name}.py")
        model = net(norm_group=4)
        files[-1].write_text(ts.export_jax(model, given, ts.Slice("v5e", pod)))
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, files)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert found["loss_difference"] < 1e-5
    assert found["gradient_difference"] < 1e-3
