"""A scan of sixteen MLPs on one v5e chip, compiled: 2,256 MiB, item by item.

`jax.checkpoint` of `gelu(x @ wi) @ wo` with [32768, 1024] inputs and 4096 hidden, all in bf16; the
loss is the sum of the last result, and the gradients are the outputs (libtpu 0.0.42.1): arguments
320 MiB (256 of weights, 64 of inputs), outputs 256, heap 1680 (saved inputs 1024, two hidden layers
of 256, what the loop carries 64, the layer's input 64, its two matrices 8 each).
"""

from functools import cache

import pytest
from accounts import memory_held
from inputs import ACTIVATION_FLOPS
from plans import MIB, lowered
from steps import partitioned_graph

from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.graph import Einsum, Graph, Pointwise, Remat, Scan, Tensor, TensorRole, training_step
from tpusim.hardware import Slice, placements
from tpusim.plan import Plan

ROWS = ("batch", "seq")
DIMS = (("batch", 32768), ("seq", 1), ("embed", 1024), ("mlp", 4096))


def stacked_mlps() -> Graph:
    given = Tensor("x", (*ROWS, "embed"), TensorRole.INPUT)
    x, out, last = (Tensor(name, (*ROWS, "embed")) for name in ("layer/layer_in", "layer/out", "y"))
    wide, hidden = (Tensor(f"layer/{name}", (*ROWS, "mlp")) for name in ("mlp_in", "mlp_hidden"))
    wi = Tensor("layer/wi", ("embed", "mlp"), TensorRole.PARAM)
    wo = Tensor("layer/wo", ("mlp", "embed"), TensorRole.PARAM)
    loss = Tensor("loss", ROWS, dtype="f32")
    body = (
        Einsum("layer/wi", x, wi, wide),
        Pointwise("layer/gelu", (wide,), (hidden,), ACTIVATION_FLOPS["gelu"]),
        Einsum("layer/wo", hidden, wo, out),
    )
    return Graph(
        "mlps", DIMS,
        (Scan("layers", 16, body, ((given, x, out, last),)),
         Pointwise("loss", (last,), (loss,), 1.0, over=("embed",))),
        (("loss", loss),),
    )  # fmt: skip


@cache
def held() -> dict[str, float]:
    """MiB at the peak by category."""
    pod = Slice("v5e", "1x1")
    plan = Plan(
        mesh={"data": 1}, seq_len=1, global_batch=32768, optimizer="sgd", param_dtype="bf16"
    )
    graph = training_step(stacked_mlps(), Remat("full"))
    (placement,) = placements(pod, plan.mesh)
    program = lowered(graph, partitioned_graph(graph, plan), plan, pod, placement)
    held = memory_held(program, run([cost_program(program, pod, placement)]))
    return {category: nbytes / MIB for category, nbytes in held.items()}


def test_a_gelu_scan_is_held_as_compiled() -> None:
    assert held()["saved activations"] == pytest.approx(1024)
    assert held()["gradients"] == pytest.approx(256)
    assert held()["weights"] == pytest.approx(256)
    assert held()["activations"] == pytest.approx(2 * 256 + 2 * 64 + 2 * 8, rel=0.03)


def test_its_whole_is_the_compilers() -> None:
    """But for the inputs, which are counted as of the step before."""
    assert sum(held().values()) == pytest.approx(2256 - 64, rel=0.01)
