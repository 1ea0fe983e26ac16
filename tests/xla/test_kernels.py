"""Pallas kernels compiled afresh: their bodies are read as those that are kept."""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
from hlo import DATA

import tpusim as ts

FOLDER = DATA / "kernels"

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("kernels")


@pytest.mark.parametrize("name", ["tiled", "int8", "looped", "softmax"])
def test_a_kernel_compiled_afresh_replays_as_the_file_that_is_kept(
    name: str, kernels: ModuleType
) -> None:
    """And the FLOPs of its body are those that are counted of JAX's own trace."""
    compiled = kernels.compiled(name)
    fresh = ts.simulate(compiled)
    (file,) = FOLDER.glob(f"{name}_*.hlo.gz")
    assert fresh.step_time_s == pytest.approx(ts.simulate(ts.xla.load(file)).step_time_s)
    assert not fresh.unknown
    flops = 0 if name == "softmax" else 2 * kernels.M * kernels.K * kernels.N
    assert float(fresh.flops.total) == compiled.model_flops == flops
