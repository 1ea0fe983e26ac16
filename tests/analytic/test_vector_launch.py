"""The launch of element-wise groups: what the compiler estimates for the smallest of them."""

from pathlib import Path
from statistics import median

import pytest

from tpusim.hardware import load_chip

pytest.importorskip("jaxlib")

from compiler_parts import Computation, HloModule, Instruction, instruction_work, read_module

from tpusim.compiler import load

HLO = Path(__file__).parents[1] / "data" / "hlo"
SMALL = 4096
"""Bytes of operands and results below which all of an estimate is launch."""


def smallest_estimates(chip: str) -> list[int]:
    """Cycles of element-wise operations on so few bytes, none of them in HBM."""
    return [
        cycles
        for path in sorted(HLO.glob(f"*_{chip}_*.hlo.gz"))
        for module in [read_module(load(path).data)]
        for where in module.computations.values()
        for each in where.instructions
        if each.opcode == "fusion" and (cycles := small(module, where, each))
    ]


def small(module: HloModule, where: Computation, fusion: Instruction) -> int | None:
    operands = (where[name].arrays for name in fusion.operands if name in where)
    arrays = [*fusion.arrays, *(array for made in operands for array in made)]
    work = instruction_work(module, where, fusion)
    large = sum(array.bytes for array in arrays) >= SMALL
    return None if large or work.flops or work.read_bytes or work.write_bytes else work.cycles


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p"])
def test_a_launch_is_the_estimate_of_the_smallest_groups(chip: str) -> None:
    device = load_chip(chip).device
    cycles = smallest_estimates(chip)
    assert len(cycles) >= 6
    assert median(cycles) / device.clock == pytest.approx(device.costs.vector_launch, rel=0.01)
