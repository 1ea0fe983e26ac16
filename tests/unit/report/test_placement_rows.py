"""The placement in words: they say which chips are the groups of each axis."""

from collections import Counter, defaultdict
from itertools import product
from math import prod
from typing import Any

import pytest

import tpusim as ts
from tpusim.hardware import DIE
from tpusim.report.html.placement_rows import axis_rows

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


def alike(written: list[str], at: tuple[int, ...]) -> tuple[int, ...]:
    """The places of a chip on parts of dimensions, as a user reads `x`, `x[:2]` and `x[::2]`."""
    places = []
    for part in written:
        dim, _, cut = part.partition("[")
        place = at["xyz".index(dim)]
        numbers = cut.rstrip("]").split(":")
        if len(numbers) == 2:
            place %= int(numbers[1])
        elif len(numbers) == 3:
            place //= int(numbers[2])
        places.append(place)
    return tuple(places)


@pytest.mark.parametrize(("chip", "shape", "mesh", "given"), PLACED)
def test_the_words_on_an_axis_are_its_groups(
    chip: str, shape: str, mesh: dict[str, int], given: dict[str, Any]
) -> None:
    """A group has every position of the axis once, and there are as many groups as it says."""
    run = run_of(chip, shape, mesh, given)
    topology = run.pod.topology
    for row in axis_rows(run):
        assert row.size == mesh[row.axis]
        spans = [span for span in run.placement.spans(row.axis) if span.dim != DIE]
        others = row.groups.partition("one for each place on ")[2].split(", ")
        groups: dict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
        for at in product(*map(range, topology.dims)):
            key = alike([part for part in others if part and part != "die"], at)
            groups[key][tuple(at[s.dim] // s.stride % s.size for s in spans)] += 1
        positions = prod(span.size for span in spans)
        assert all(set(group.values()) == {1} for group in groups.values())
        assert {len(group) for group in groups.values()} == {positions}
        count = len(groups) * (run.pod.chip.devices if "die" in others else 1)
        assert row.groups.startswith(f"{count:,} group{'s' * (count != 1)} of {row.size:,}: ")


def test_rings_lines_neighbours_and_strides_have_their_words() -> None:
    fsdp, tensor = axis_rows(run_of(*PLACED[2]))
    assert tensor.groups == (
        "64 groups of 4: 2 neighbours along x, 2 neighbours along y; "
        "one for each place on x[::2], y[::2]"
    )
    assert "8 chips along x, each 2 from the next" in fsdp.groups
    data = axis_rows(run_of(*PLACED[1]))[0]
    assert data.groups == "128 groups of 8: a ring of 8 along x; one for each place on z, y"
    assert axis_rows(run_of(*PLACED[5]))[0].groups == (
        "1 group of 32: a line of 4 along x, a line of 8 along y"
    )
    die = axis_rows(run_of(*PLACED[4]))[1]
    assert die.groups.startswith("16 groups of 2: both devices of a chip")
