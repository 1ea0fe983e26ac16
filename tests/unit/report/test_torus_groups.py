"""The drawing of the placement: its boxes are the groups of each axis."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import pytest

import tpusim as ts
from tpusim.hardware import DIE
from tpusim.report.html.torus_groups import CHIP, MARGIN, GroupPlane, axis_groups

MODEL = ts.models.Transformer(layers=2, embed=1024, mlp=4096, heads=8, vocab=8192)
PLACED: list[tuple[str, str, dict[str, int], dict[str, Any]]] = [
    ("v4", "8x16x16", {"fsdp": 256, "tensor": 8}, {"fsdp": ["y", "z"], "tensor": "x"}),
    ("v5p", "8x8x16", {"data": 8, "fsdp": 16, "tensor": 8},
     {"data": "x", "fsdp": "z", "tensor": "y"}),
    ("v5e", "16x16", {"fsdp": 64, "tensor": 4},
     {"fsdp": ["x[::2]", "y[::2]"], "tensor": ["x[:2]", "y[:2]"]}),
    ("v5p", "4x4x8", {"fsdp": 16, "tensor": 8},
     {"fsdp": ["x[:2]", "z"], "tensor": ["y", "x[::2]"]}),
    ("7x", "2x2x4", {"fsdp": 16, "tensor": 2}, {"fsdp": ["x", "y", "z"], "tensor": "die"}),
    ("v5e", "4x8", {"fsdp": 32}, {"fsdp": ["x", "y"]}),
]  # fmt: skip


def run_of(chip: str, shape: str, mesh: dict[str, int], given: dict[str, Any]) -> ts.PlanResult:
    plan = ts.Plan(mesh=mesh, seq_len=128, global_batch=1024, placement=given)
    return ts.simulate(MODEL, plan, ts.Slice(chip, shape))


def chips(plane: GroupPlane) -> Iterator[tuple[str, dict[int, int]]]:
    """Each chip of a picture: the number of its group, and its coordinates."""
    words = re.fullmatch(r"(?:(.*): )?(.) down, (.) across", plane.title)
    assert words
    down, across = "xyz".index(words[2]), "xyz".index(words[3])
    (through,) = {0, 1, 2} - {across, down}
    ends = [int(number) for number in re.findall(r"[0-9]+", words[1] or "0")]
    for box in plane.boxes:
        left, top = (box.x - MARGIN) // CHIP, (box.y - MARGIN) // CHIP
        for x, y, z in product(
            range(left, left + box.width // CHIP),
            range(top, top + box.height // CHIP),
            range(ends[0], ends[-1] + 1),
        ):
            yield box.text, {across: x, down: y, through: z}


@pytest.mark.parametrize(("chip", "shape", "mesh", "given"), PLACED)
def test_the_boxes_of_an_axis_are_its_groups(
    chip: str, shape: str, mesh: dict[str, int], given: dict[str, Any]
) -> None:
    """A group is at every position of the axis once, and no chip is left out."""
    run = run_of(chip, shape, mesh, given)
    for axis in axis_groups(run):
        spans = [span for span in run.placement.spans(axis.axis) if span.dim != DIE]
        if not spans:
            assert axis.about == "the two devices of each chip"
            continue
        groups: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
        for plane in axis.planes:
            for number, at in chips(plane):
                groups[number][tuple(at[s.dim] // s.stride % s.size for s in spans)] += 1
        positions = prod(span.size for span in spans)
        assert all(set(group.values()) == {1} for group in groups.values())
        assert {len(group) for group in groups.values()} == {positions}
        assert len(groups) * positions == run.pod.topology.chips
        numbers = f"{len(groups):,} group" if len(run.placement.axes) > 1 else "1 group of"
        assert axis.about.startswith(numbers) or run.pod.chip.devices > 1


@pytest.mark.parametrize(("chip", "shape", "mesh", "given"), PLACED)
def test_neighbours_of_two_groups_have_two_tints(
    chip: str, shape: str, mesh: dict[str, int], given: dict[str, Any]
) -> None:
    for axis in axis_groups(run_of(chip, shape, mesh, given)):
        for plane in axis.planes:
            boxes = {(box.x, box.y): box for box in plane.boxes}
            for box in plane.boxes:
                for place in ((box.x + box.width, box.y), (box.x, box.y + box.height)):
                    assert place not in boxes or boxes[place].tint != box.tint


def test_links_that_reach_over_the_edge_close_a_ring() -> None:
    fsdp, tensor = axis_groups(run_of(*PLACED[2]))
    edge = 16 * CHIP + 2 * MARGIN
    assert f"M0 {MARGIN + CHIP // 2}H{edge}" in fsdp.planes[0].links  # every second chip, around
    assert f"M{MARGIN + CHIP // 2} {MARGIN + CHIP // 2}H{MARGIN + 3 * CHIP // 2}" in (
        tensor.planes[0].links
    )
    assert tensor.about == "64 groups of 4, 2 neighbours along x, 2 neighbours along y"
    data = axis_groups(run_of(*PLACED[1]))[0]
    assert data.about == "128 groups of 8, a ring of 8 along x; a group goes on through the planes"
    assert [plane.title for plane in data.planes] == ["x = 0 to 7: y down, z across"]


def test_an_axis_of_many_groups_says_what_is_not_drawn() -> None:
    mesh, given = {"fsdp": 1024, "tensor": 2}, {"fsdp": ["x[::2]", "y", "z"], "tensor": "x[:2]"}
    fsdp, tensor = axis_groups(run_of("v4", "8x16x16", mesh, given))
    assert "not drawn" not in fsdp.about
    assert len(tensor.planes) == 2
    assert tensor.about.endswith("the other planes are cut alike, into the groups after these")
