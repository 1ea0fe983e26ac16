"""The collectives of a compiled layer of experts.

16 experts on 16 chips (v5e and v5p), a mask, embed 4096, mlp 8192, 1024 tokens a chip, of which any
expert could take all (libtpu 0.0.42.1): 128 MiB come back in a synchronous all-to-all, 16 MiB of
the mask go the same way, and tokens reach the experts in a ring over all of them, 8 MiB each.
"""

import pytest
from plans import MIB, loop

from tpusim.base import Phase
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, Loop, Mode
from tpusim.simulation import simulate


@pytest.mark.parametrize(("chip", "topology"), [("v5e", "4x4"), ("v5p", "2x2x4")])
def test_a_layer_has_the_collectives_of_the_compiled_program(chip: str, topology: str) -> None:
    model = Transformer(
        layers=2, embed=4096, mlp=8192, heads=32, vocab=32000, gated=False, activation="gelu",
        experts=16, experts_per_token=1,
    )  # fmt: skip
    plan = Plan(
        mesh={"expert": 16}, seq_len=1024, global_batch=16, capacity_factor=16.0,
        expert_exchange="ring",
    )  # fmt: skip
    layers = loop(simulate(model, plan, Slice(chip, topology)).program.body, "layers")
    exchanged = {
        op.scope: (op.bytes / MIB, op.dtype, op.mode)
        for op in layers.body
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL
    }
    assert exchanged == {
        "layer/dispatch_mask": (16, "pred", Mode.SYNC),
        "layer/expert_out": (128, "bf16", Mode.SYNC),
    }
    (ring,) = [op for op in layers.body if isinstance(op, Loop) and "dispatch" in op.name]
    (step,) = [op for op in ring.body if isinstance(op, Collective)]
    assert step.phase is Phase.FORWARD
    assert step.bytes * ring.trips / MIB == 15 * 8, "each chip's 8 MiB pass all others"


def test_a_mask_and_its_gradient_are_never_written() -> None:
    """8 experts on v6e 4x4, 8192 tokens a chip, 1280 slots: 160 MiB, generated in each product."""
    model = Transformer(
        layers=4, embed=4096, mlp=14336, heads=32, vocab=32000, experts=8, experts_per_token=2
    )
    plan = Plan(
        mesh={"fsdp": 4, "expert": 4}, seq_len=4096, global_batch=32, capacity_factor=1.25
    )  # fmt: skip
    program = simulate(model, plan, Slice("v6e", "4x4")).program
    for name in ("layers", "layers/d"):
        body = [op for op in loop(program.body, name).body if isinstance(op, Compute)]
        assert not [op for op in body if op.scope.endswith("layer/masks")]
        assert not [one for op in body for one in op.allocs if "combine_mask" in one.tensor]
    forward = {op.name: op for op in loop(program.body, "layers").body}
    assert forward["layer/dispatch"].work.read_bytes / MIB == pytest.approx(64, rel=1e-3)
    assert forward["layer/combine"].work.read_bytes / MIB == pytest.approx(160 + 64, rel=1e-3)
    backward = {op.name: op for op in loop(program.body, "layers/d").body}
    reads = {
        name: round(backward[f"bwd/layer/{name}"].work.read_bytes / MIB)
        for name in ("dispatch", "combine/dx", "dispatch/dx")
    }
    assert reads == {"dispatch": 64, "combine/dx": 64, "dispatch/dx": 160}


@pytest.mark.parametrize("seq_len", [256, 1024])
def test_exchanges_take_the_share_that_gshard_measured(seq_len: int) -> None:
    """16 % of a layer of 128 experts and the dense one beside it, on 128 cores of v3, in f32.

    GShard, arXiv:2006.16668, section 5.2 and table 1: embed 1024, mlp 8192, 16 heads of 128, top-2,
    1M tokens a step. The length of the sequences is not stated.
    """
    model = Transformer(
        kind="encoder", layers=36, embed=1024, mlp=8192, heads=16, head_dim=128, vocab=64000,
        gated=False, activation="relu", rotary=False, attention="dot",
        experts=128, experts_per_token=2, expert_every=2,
    )  # fmt: skip
    plan = Plan(
        mesh={"expert": 128}, seq_len=seq_len, global_batch=2**20 // seq_len, dtype="f32",
        capacity_factor=1.0, rules={"embed": None}, optimizer="adafactor",
    )  # fmt: skip
    result = simulate(model, plan, Slice("v3", "8x8"))
    share = result.breakdown_s["exposed expert"] / result.step_time_s
    assert share == pytest.approx(0.16, abs=0.06)
