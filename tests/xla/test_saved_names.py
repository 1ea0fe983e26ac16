"""What each saved name costs: HBM with it less HBM without, of the plan and of its program.

Of MaxText 0.2.5 (the same model on v6e-16, 8 layers, `remat_policy = custom`; jax 0.11.1, libtpu
0.0.52, compiled ahead of time), names cost as here what one stack of the tensor does: `context` 259
of 256 MiB (with 4 for the sums of its softmax), `query_proj` 255 of 256, `key_proj` and
`value_proj` 128 of 128, all three 511 of 512, `mlpwi_0` 895 and `mlpwi_1` 863 of 1024, and `mlpwo`,
which no backward pass reads, nothing.
"""

from functools import cache
from importlib.util import find_spec

import pytest
from extent import thorough

import tpusim as ts

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

LAYERS, EMBED, MLP, TOKENS = 32, 2048, 8192, 2 * 4096
MODEL = ts.models.Transformer(
    layers=LAYERS, embed=EMBED, mlp=MLP, heads=16, kv_heads=8, head_dim=128, vocab=2048
)  # fmt: skip
MESHES = {"v5e": {"data": 4, "fsdp": 4}}
PODS = {"v4": "2x2x4", "v5p": "2x2x4", "v5e": "4x4", "v6e": "4x4", "7x": "2x2x2"}
STACK = 2 * LAYERS * TOKENS * EMBED
"""Bytes of a stack as wide as the embedding; most of the HBM of any of these plans."""


@cache
def hbm(chip: str, *save: str) -> tuple[float, float]:
    """Bytes of a plan and of its program."""
    plan = ts.Plan(
        mesh=MESHES.get(chip, {"fsdp": 16}), seq_len=4096, global_batch=32,
        remat={"policy": "full", "save": save},
    )  # fmt: skip
    made = ts.check(MODEL, plan, ts.Slice(chip, PODS[chip]))
    return made.plan.hbm_peak_bytes, made.compiled.memory.total


@pytest.mark.parametrize(
    ("save", "stacks"),
    [
        (("context",), 1),
        thorough(("context", "attended"), 1),
        thorough(("q_rotary", "q_kernel"), 1),
        (("q", "k", "v", "q_kernel"), 2),
        thorough(("mid", "out"), 1),
        thorough(("layer_in", "mlp_out"), 0),
        thorough(("mlp_in_0",), MLP / EMBED),
    ],
)
@pytest.mark.parametrize("chip", ["v6e", *map(thorough, ("v4", "v5e", "v5p", "7x"))])
def test_a_saved_name_costs_its_stack(chip: str, save: tuple[str, ...], stacks: float) -> None:
    """Less what is not computed again and not held at the peak: a quarter of a stack."""
    plan, program = (one - other for one, other in zip(hbm(chip, *save), hbm(chip), strict=True))
    assert (stacks - 0.25) * STACK <= plan <= (stacks + 0.1) * STACK
    assert program == pytest.approx(plan, abs=0.3 * STACK)
