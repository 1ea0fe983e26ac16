"""Steps of a server beside what the TPU compiler makes of them: the same work, HBM and traffic."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import run

import tpusim as ts

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

SIZES: dict[str, Any] = {
    "layers": 2, "embed": 1024, "mlp": 2816, "heads": 16, "kv_heads": 4, "head_dim": 128,
    "vocab": 32000,
}  # fmt: skip
EXPERTS = {"experts": 16, "experts_per_token": 4, "expert_mlp": 512}
DECODE = ts.StepLoad(64, 64 * 1024)
PROMPTS = ts.StepLoad(0, 0, 2 * 512, 2 * 512, 2 * 512 * 513 // 2)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], ts.StepLoad]] = {
    "decode over pages": ({}, {"kernel": "paged", "weight_dtype": "int8"}, DECODE),
    "decode": ({}, {"kernel": "dot", "mesh": {"attn_data": 2, "tensor": 2}}, DECODE),
    "prompts": ({}, {"kernel": "paged"}, PROMPTS),
    "divided experts": (EXPERTS, {"kernel": "paged", "expert_parallel": True}, DECODE),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("case", CASES)
def test_a_step_does_the_work_of_its_program(case: str) -> None:
    """FLOPs are equal, and HBM: the cache is updated in place, and weights are as they are stored.

    What is summed over the mesh is the same, but for the choice of the next tokens, which are few.
    Activations of prompts stay on the chip in the program, and the replay takes the buffer of a
    device's experts to be full.
    """
    sizes, keys, load = CASES[case]
    plan = ts.ServingPlan(**{"mesh": {"tensor": 4}, "page_size": 128, **keys})
    found = ts.check_serving(
        ts.models.Transformer(**SIZES | sizes), plan, ts.Slice("v6e", "2x2"), load
    ).comparison
    filled = 1.25 if "experts" in sizes else 1.001
    assert found.plan_flops <= found.program_flops * 1.001 <= filled * 1.001 * found.plan_flops
    assert found.plan_hbm_bytes == pytest.approx(
        found.program_hbm_bytes, rel=0.1 if load.prefills else 0.03
    )
    planned, compiled = map(sum, zip(*(row.wire_bytes for row in found.collectives), strict=True))
    assert planned == pytest.approx(compiled, rel=0.01)
    assert found.same_mode_share > 0.99
    attention = next(row for row in found.times if row.what == "attention kernels")
    assert attention.plan > 0
    assert attention.program > 0
    assert found.plan_step_s == pytest.approx(found.program_step_s, rel=0.5)


def test_a_server_of_a_run_file_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    model = "\n".join(f"{key} = {value}" for key, value in SIZES.items())
    file.write_text(
        f"[slice]\nname = 'v6e-4'\n[model]\n{model}\n"
        "[serving]\nmesh = { tensor = 4 }\nmax_num_seqs = 16\n",
        "utf-8",
    )
    assert run(["check", str(file), "--json", "--quiet", "--step", "prefill"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["title"].endswith("prefill step (4 chips)")
    assert found["plan_hbm_bytes"] == pytest.approx(found["program_hbm_bytes"], rel=0.1)
