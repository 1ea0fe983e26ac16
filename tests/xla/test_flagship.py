"""The 480B encoder, compiled afresh for 2048 chips that nobody has rented, and replayed."""

import importlib
import sys
from pathlib import Path

import pytest

import tpusim as ts

PROGRAMS = Path(__file__).parents[2] / "experiments" / "jax_programs"
MEASURED = (21.57, 21.95)
"""Seconds a step, fastest clean block and median (MLPerf Training v1.1, open division, Google)."""


@pytest.mark.thorough
@pytest.mark.xla
def test_the_flagship_is_within_eight_percent_of_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("libtpu", reason="compiling needs the extra `xla`")
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    encoder = importlib.import_module("encoder")
    slice_, mesh = encoder.RUNS["full"][0]
    program = encoder.program(mesh, **encoder.FULL)
    compiled = ts.xla.compile(
        program.step, *program.args, slice=slice_, mesh=mesh, in_shardings=program.shardings,
        out_shardings=program.out_shardings, donate=program.donate, cache=False,
    )  # fmt: skip
    result = ts.simulate(compiled)
    assert all(abs(result.step_time_s / seconds - 1) < 0.08 for seconds in MEASURED)
    assert float(result.flops.total) == pytest.approx(program.step_flops, rel=0.01)
    assert compiled.model_flops == pytest.approx(program.model_flops, rel=0.01)
    assert result.hfu / result.mfu == pytest.approx(1.238, abs=0.01)
    assert result.unknown == ()
    unfolded = ts.simulate(compiled, fold=False)
    assert unfolded.timeline.total_ps == result.timeline.total_ps
