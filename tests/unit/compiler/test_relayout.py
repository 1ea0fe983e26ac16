"""Memory tiles that pass through the cross-lane unit, of relayouts in profiles of tpu-inference."""

import pytest
from scripts import EXPERIMENTS, script

from tpusim.compiler.work.relayout import (
    MOVED_WEIGHT,
    ROWS_WEIGHT,
    SPREAD_WEIGHT,
    crossing_tiles,
    tile_count,
)

read_instruction = script(EXPERIMENTS / "operations/instruction_line.py").read_instruction

TILE = "T(8,128)"
"""Of 32-bit elements, `@` below; `@2` of 16-bit ones."""

ROWS = "f32[1024,32,128]{2,1,0:@S(1)}"


SPREAD = f"{ROWS} broadcast(f32[1024,32]{{0,1:@}} %), dimensions={{0,1}}"
BIAS = "f32[1024,5120]{1,0:@} broadcast(f32[5120]{0:T(1024)} %), dimensions={1}"


def crossing(line: str) -> float:
    found = read_instruction("% = " + line.replace("@2", f"{TILE}(2,1)").replace("@", TILE))
    return crossing_tiles(found.instruction, found.operands)


@pytest.mark.parametrize(
    ("line", "tiles", "weight"),
    [
        # transposes of rows and lanes
        (
            "bf16[1024,1,2560]{0,2,1:@2S(1)} "
            "copy(bf16[1024,1,2560]{2,0,1:@2S(1)} %)",
            2560,
            1,
        ),
        # rows of another dimension
        (
            "f32[128,8,32,128]{3,2,1,0:@S(1)} copy(f32[128,8,32,128]{3,1,2,0:@S(1)} %)",
            4096,
            ROWS_WEIGHT,
        ),
        # lanes cut into rows, of smaller tiles
        (
            "bf16[1024,4,128]{2,1,0:T(4,128)(2,1)S(1)} "
            "reshape(bf16[1024,1,512]{2,0,1:@2S(1)} %)",
            1024,
            ROWS_WEIGHT,
        ),
        # from HBM the smaller tiles arrive as they are wanted
        (
            "bf16[1024,4,3,2,128]{4,0,3,2,1:@2S(1)} "
            "copy(bf16[1024,4,3,2,128]{4,3,2,0,1:T(2,128)(2,1)} %)",
            3072,
            ROWS_WEIGHT,
        ),
        # tiles stay whole
        (
            "bf16[1024,4,4,2,128]{4,3,2,1,0:T(2,128)(2,1)S(1)} "
            "copy(bf16[1024,4,4,2,128]{4,3,2,0,1:T(2,128)(2,1)} %)",
            0,
            1,
        ),
        ("bf16[64,512]{1,0:@2} reshape(bf16[8,8,512]{2,1,0:@2} %)", 0, 1),
        ("bf16[64,512]{1,0:T(16,128)(2,1)} copy(bf16[64,512]{1,0:@2} %)", 0, 1),
        # cuts and joins
        ("f32[8,64]{1,0:@} slice(f32[8,128]{1,0:@} %), slice={[0:8], [0:64]}", 0, 1),
        ("f32[8,64]{1,0:@} slice(f32[8,128]{1,0:@} %), slice={[0:8], [64:128]}", 1, 1),
        ("f32[8,128]{1,0:@} slice(f32[8,256]{1,0:@} %), slice={[0:8],[128:256]}", 0, 1),
        ("f32[8,128]{1,0:@} pad(f32[8,64]{1,0:@} %), padding=0_0x64_0", 1, 1),
        # sums over lanes: whole tiles are added up first
        (f"f32[1024,32]{{1,0:@S(1)}} reduce({ROWS} %), dimensions={{2}}", 4096, 1),
        ("f32[1024]{0:T(1024)} reduce(f32[1024,5120]{1,0:@} %), dimensions={1}", 128, 1),
        ("f32[5120]{0:T(1024)} reduce(f32[1024,5120]{1,0:@} %), dimensions={0}", 0, 1),
        # broadcasts over lanes and over rows
        (SPREAD, 4096, SPREAD_WEIGHT),
        (BIAS, 40, MOVED_WEIGHT),
        ("f32[1024,5120]{1,0:@} broadcast(f32[] %), dimensions={}", 0, 1),
        ("f32[8,128]{1,0:@} add(f32[8,128]{1,0:@} %, f32[8,128]{0,1:@} %)", 0, 1),
    ],
)  # fmt: skip
def test_tiles_that_cross(line: str, tiles: float, weight: float) -> None:
    assert crossing(line) == pytest.approx(tiles * weight)


def test_a_register_holds_a_tile_however_small() -> None:
    found = read_instruction("% = bf16[1024,4,64]{2,1,0:T(4,128)(2,1)} copy(bf16[8]{0} %)")
    assert tile_count(found.instruction.arrays[0]) == 1024


def test_arrays_without_a_layout_have_whole_registers() -> None:
    assert crossing("f32[16,256] reshape(f32[16,256] %)") == 0
    assert crossing("f32[256,16] transpose(f32[16,256] %), dimensions={1,0}") == 4
    assert crossing("f32[] reduce(f32[8] %), dimensions={0}") == 0
