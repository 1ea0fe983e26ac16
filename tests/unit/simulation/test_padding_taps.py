"""FLOPs of taps of convolutions on padding: said, and left out where that is asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.compiler import Compiled, load

pytest.importorskip("jaxlib.xla_client")

HLO = Path(__file__).parents[2] / "data" / "hlo" / "convolution_v5e_4x4.hlo.gz"
SAID = "taps of convolutions on padding, "
COUNTED = "--no-padding-taps (padding_taps=False) leaves them out, as XLA's own analysis does"
MODEL_FLOPS, OF_PADDING = 3e12, 0.3e12


@pytest.fixture(name="program")
def _program() -> Compiled:
    return replace(load(HLO), model_flops=MODEL_FLOPS, padding_flops=OF_PADDING)


def test_both_ways_take_the_same_time_and_say_what_they_count(program: Compiled) -> None:
    counted, without = ts.simulate(program), ts.simulate(program, padding_taps=False)
    (remark,) = (each for each in counted.remarks if SAID in each)
    assert remark.startswith(f"FLOPs count {SAID}")
    assert remark.endswith(COUNTED)
    share = float(remark.split(SAID)[1].split("%")[0]) / 100
    (remark,) = (each for each in without.remarks if SAID in each)
    assert remark.startswith(f"FLOPs leave out {SAID}{share:.1%} of what the array multiplies")
    assert without.timeline.total_ps == counted.timeline.total_ps
    assert without.hfu / counted.hfu == pytest.approx(1 - share, abs=0.0005)
    assert without.mfu / counted.mfu == pytest.approx(1 - OF_PADDING / MODEL_FLOPS)


def test_flops_that_are_given_are_kept(program: Compiled) -> None:
    assert ts.simulate(program, padding_taps=False, model_flops=1e12).model_flops == 1e12


def test_a_file_keeps_how_many_are_on_padding(program: Compiled, tmp_path: Path) -> None:
    program.save(tmp_path / "it.hlo")
    assert load(tmp_path / "it.hlo").padding_flops == OF_PADDING
