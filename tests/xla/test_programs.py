"""The programs of our own, compiled afresh: they are read as those that are kept."""

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from extent import thorough
from hlo import DATA

import tpusim as ts

FOLDER = Path(__file__).parents[2] / "experiments" / "jax_programs"
FILES = json.loads((DATA / "manifest.json").read_text("utf-8"))["files"]
FRESH = (
    "decode_7x_2x2x1",
    *map(
        thorough,
        (
            "moe_v6e_4x4",
            "pipeline_v6e_4x4",
            "convolution_v5e_4x4",
            "decode_v6e_2x2",
            "decoder_v4_2x2x1",
            "encoder_v5p_2x2x4",
        ),
    ),
)
"""Compiled to the end, which takes half a minute each."""

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]


@pytest.mark.parametrize("file", FRESH)
def test_a_program_compiled_afresh_replays_as_the_file_that_is_kept(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FILES[f"{file}.hlo.gz"]
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    module = importlib.import_module(line["program"])
    program = module.program(line["mesh"], **line["sizes"])
    compiled = ts.xla.compile(
        program.step, *program.args, name=line["program"], slice=line["slice"], mesh=line["mesh"],
        in_shardings=program.shardings, out_shardings=program.out_shardings,
        donate=program.donate, model_flops=program.model_flops, cache=False,
    )  # fmt: skip
    fresh, kept = ts.simulate(compiled), ts.simulate(ts.xla.load(DATA / f"{file}.hlo.gz"))
    assert fresh.step_time_s == pytest.approx(kept.step_time_s, rel=0.02)
    assert float(fresh.flops.total) == pytest.approx(program.step_flops, rel=0.01)
    assert sum(each.picoseconds for each in fresh.unknown) < 0.01 * fresh.timeline.total_ps
    assert fresh.hbm_peak_bytes == pytest.approx(line["total_bytes"], rel=0.02)
