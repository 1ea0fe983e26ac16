"""Circular pipelines beside what the TPU compiler makes of them: do their weights move in rings?"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from extent import sample

import tpusim as ts
from tpusim.compiler_check import check
from tpusim.hardware import parse_slice
from tpusim.models import Transformer

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slice_", "mesh", "error"),
    sample(
        [
            ("v4:2x2x4", {"stage": 2, "fsdp": 8}, 0.04),
            ("v5e:8x8", {"stage": 4, "fsdp": 16}, 0.04),
            ("v5p:4x4x4", {"stage": 4, "fsdp": 16}, 0.04),
            ("v6e:4x8", {"stage": 2, "fsdp": 16}, 0.04),
            ("v5p:2x2x4", {"stage": 4, "fsdp": 4}, 0.05),
        ],
        5,
    ),
)
def test_a_plain_pipeline_moves_its_weights_as_its_program_does(
    slice_: str,
    mesh: dict[str, int],
    error: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In rings, beside matmuls on v5e, and synchronously over four devices of v5p."""
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    model = Transformer(layers=8, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)
    batch = 8 * mesh["fsdp"] * (2 if slice_ != "v6e:4x8" else 1)
    plan = ts.Plan(
        mesh=mesh, global_batch=batch, microbatches=8, seq_len=2048, schedule="circular"
    )  # fmt: skip
    found = check(model, plan, parse_slice(slice_)).comparison.facts()
    assert found["plan_step_s"] == pytest.approx(found["program_step_s"], rel=error)
