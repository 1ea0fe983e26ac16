"""What differentiation without checkpoints keeps of a layer, array by array.

The stacks of `jax.grad` of a scan over layers without `jax.checkpoint`, counted in its jaxpr (jax
0.10.2) and found again in compiled steps (v6e 4x4, v5p 2x2x4; libtpu 0.0.42.1).
"""

from typing import Any

import pytest
from plans import any_program_of, flat, holders, plan_of, small

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.program import Compute, Program, VectorWork

SEQ, BATCH = 128, 32
TOKENS, SEQUENCES = SEQ * BATCH // 16, BATCH // 16
POD = Slice("v5e", "4x4")

HIDDEN_BYTES = {
    ("relu", False): 2 + 1,
    ("relu", True): 3 * 2 + 1,
    ("gelu", False): 6 * 2,
    ("gelu", True): 8 * 2,
    ("silu", False): 4 * 2,
    ("silu", True): 6 * 2,
}
"""Bytes for each element of the hidden layer: arrays in bf16, and where relu's operand is positive.

silu with a gate: both operands, the sigmoid, its slope, what silu makes and the product with the
gate. gelu: its operand, 3 x^2, tanh, 1 - tanh, (1 + tanh)/2, and what it makes.
"""


def program(remat: str = "none", **changes: Any) -> Program:
    plan = plan_of({"data": 16}, seq_len=SEQ, global_batch=BATCH, remat=remat)
    return any_program_of(small(**changes), plan, POD)


def saved(found: Program) -> float:
    """Bytes of the stacks that a step takes."""
    ops = (op for op, _ in holders(found.body))
    return sum(a.bytes for op in ops for a in op.allocs if a.category == "saved activations")


def heads(m: Transformer) -> int:
    """Elements of a tensor of heads: a kernel has those of a head in the 128 lanes."""
    return TOKENS * m.heads * (128 if m.attention.kernel == "flash" else m.head_dim)


@pytest.mark.parametrize(("activation", "gated"), HIDDEN_BYTES)
def test_a_layer_keeps_what_its_linearisation_reads(activation: str, gated: bool) -> None:
    """Of each norm its operand in f32, what it scales and its result; five copies at the kernel."""
    m = small(activation=activation, gated=gated)
    norms = 2 * TOKENS * m.embed * (4 + 2 + 2)
    hidden = TOKENS * m.mlp * HIDDEN_BYTES[activation, gated]
    each = norms + 5 * 2 * heads(m) + hidden
    found = saved(program(activation=activation, gated=gated))
    assert found == m.layers * each


@pytest.mark.parametrize(("dtype", "itemsize"), [("compute", 2), ("f32", 4)])
def test_a_softmax_keeps_exponentials_and_probabilities(dtype: str, itemsize: int) -> None:
    """The first in its own dtype; and q, k and v, as the products read them, and their result."""
    m = small(attention="dot", softmax_dtype=dtype)
    scores = SEQUENCES * m.heads * SEQ**2 * (itemsize + 2)
    norms, hidden = 2 * TOKENS * m.embed * (4 + 2 + 2), TOKENS * m.mlp * 6 * 2
    each = norms + 4 * 2 * heads(m) + hidden + scores
    found = saved(program(attention="dot", softmax_dtype=dtype))
    assert found == m.layers * each


@pytest.mark.parametrize("norms", [{"post_norms": True}, {"qk_norm": True}])
def test_each_norm_more_keeps_its_operand_wide_and_what_it_scales(norms: dict[str, bool]) -> None:
    """A norm of heads comes before the rotation, so that nobody reads its result again."""
    m = small()
    size = 2 * TOKENS * m.embed if "post_norms" in norms else 2 * heads(m)
    more = saved(program(**norms)) - saved(program())
    assert more == m.layers * size * (4 + 2)


def test_a_norm_by_mean_and_variance_keeps_the_difference_from_the_mean_too() -> None:
    m = small()
    more = saved(program(norm="layer")) - saved(program())
    assert more == m.layers * 2 * TOKENS * m.embed * 4


@pytest.mark.parametrize("remat", ["full", "minimal", "dots"])
@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_under_a_checkpoint_none_of_it_is_kept(remat: str, attention: str) -> None:
    made = {
        alloc.tensor.removeprefix("bwd/").partition(" ")[0]
        for op, _ in holders(program(remat, attention=attention).body)
        for alloc in op.allocs
    }
    assert not [name for name in made if name.endswith(("_operand", "_unscaled", "_slope"))]
    assert "layer/exponentials" not in made


def work(found: Program, name: str) -> Any:
    return next(
        op.work for op, _ in flat(found.body) if isinstance(op, Compute) and op.name == name
    )


def test_the_forward_pass_writes_it_once_and_the_backward_pass_reads_it_once() -> None:
    """silu with a gate, in arrays of the hidden layer: 2 read, 4 written; then 6 read in all.

    It goes from the group to its stacks and from there to the gradient without another copy. The
    product of the gradient with a weight reads the sixth, `mlp_hidden`, which is copied.
    """
    found, one = program(), 2 * TOKENS * small().mlp
    assert work(found, "layer/silu") == VectorWork(2 * one, 4 * one, pytest.approx(17 * one / 2))
    back = work(found, "bwd/layer/wo_mlp/dx")
    m = small()
    operands = 2 * TOKENS * m.embed + 2 * m.embed * m.mlp
    assert (back.read_bytes, back.write_bytes) == (operands + 5 * one, 2 * one)
    copies = [op.name for op, _ in flat(found.body) if op.name.startswith(("save/", "load/"))]
    assert [name for name in copies if "silu" in name or "mlp_in" in name] == []
    assert "load/bwd/layer/mlp_hidden" in copies
