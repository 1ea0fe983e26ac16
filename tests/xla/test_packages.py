"""Steps of models from packages, small: each compiles and replays with all of it understood."""

import importlib
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import tpusim as ts

FOLDER = Path(__file__).parents[2] / "experiments" / "packages"
MODULES = {
    "nnx": "flax", "linen": "flax", "equinox": "equinox", "haiku": "haiku", "keras": "keras",
    "penzai": "penzai",
}  # fmt: skip

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]


@pytest.mark.parametrize(("name", "package"), MODULES.items())
def test_a_step_of_a_package_compiles_and_is_understood(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'tpusim[packages]'")
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    programs = importlib.import_module("programs")
    monkeypatch.setitem(sys.modules, "programs", programs)
    compiling = importlib.import_module("compile")
    program = compiling.compiled(name, programs.SMALL, "v5e:2x2")
    monkeypatch.delitem(sys.modules, "compile")
    result = ts.simulate(program)
    assert result.unknown_share < 0.005
    assert result.mfu is not None
    assert 0 < result.mfu < 1
    executed, model = float(result.flops.total), program.model_flops
    assert model is not None
    assert 0.9 < executed / model < 1.6, "no product is missed, none is done on all devices"
    bare = ts.simulate(replace(program, memory=None))
    assert program.memory is not None
    assert bare.hbm_peak_bytes == pytest.approx(program.memory.total, rel=0.02)
    assert any(row.place.startswith("programs.py:") for row in ts.explain_lines(result).rows)
