"""FLOPs of compiled training steps, against closed forms. (`tests/data/hlo` has the programs.)"""

from collections.abc import Iterator

import pytest
from compiler_parts import (
    Computation,
    HloModule,
    InstructionWork,
    callees,
    instruction_work,
    is_free,
)
from hlo import DATA

from tpusim.compiler.to_program.trip_counts import trip_count
from tpusim.costs import work_seconds
from tpusim.hardware import load_chip

DEVICES = 4


def read(name: str) -> HloModule:
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    from compiler_parts import read_module

    return read_module((DATA / "plain" / f"{name}_v5e_2x2.hlo.gz").read_bytes())


def works(
    module: HloModule, computation: Computation, times: int = 1
) -> Iterator[tuple[InstructionWork, int]]:
    """The work of each instruction, loops entered, and how often it runs."""
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            (body,) = callees(instruction, "body")
            count = trip_count(module, computation, instruction)
            assert count is not None
            yield from works(module, module.computations[body], times * count)
        elif instruction.opcode in ("fusion", "convolution", "dot") and not is_free(instruction):
            yield instruction_work(module, computation, instruction), times


def flops(name: str) -> float:
    module = read(name)
    return DEVICES * sum(times * work.flops for work, times in works(module, module.main))


def test_a_scan_of_mlps_with_remat() -> None:
    """Two products forward, four backward, and the first again: the second's output is dead."""
    layers, embed, mlp, tokens = 4, 2048, 8192, 65536
    product = 2 * tokens * embed * mlp
    assert flops("scan_mlp") == layers * (2 + 4 + 1) * product


def test_an_encoder_with_remat() -> None:
    """Forward, twice that backward, and all of a layer again but its last product.

    Scores and their weighted sums have batches and heads as dimensions that slide.
    """
    layers, embed, mlp, heads, width, seq, batch, vocab = 4, 512, 2048, 8, 64, 256, 16, 1024
    tokens = batch * seq
    projections = 4 * 2 * tokens * embed * heads * width
    attention = 2 * 2 * batch * heads * seq * seq * width
    last = 2 * tokens * embed * mlp
    layer, head = projections + attention + 2 * last, 2 * tokens * embed * vocab
    assert flops("encoder") == 3 * (layers * layer + head) + layers * (layer - last)


@pytest.mark.parametrize("name", ["scan_mlp", "encoder"])
def test_all_of_a_step_is_understood_and_no_faster_than_the_chip(name: str) -> None:
    module, device = read(name), load_chip("v5e").device
    for work, _ in works(module, module.main):
        assert work.understood, work.note
        seconds = work_seconds(work.model, device)
        assert seconds >= work.flops / device.peak("bf16")
        assert seconds >= (work.read_bytes + work.write_bytes) / device.hbm_bandwidth
