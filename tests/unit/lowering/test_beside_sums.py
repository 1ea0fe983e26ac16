"""A matmul beside the sum of activations that is computed again on the SparseCore."""

from plans import loop, plan_of, program_of, small

from tpusim.hardware import Slice
from tpusim.program import Loop


def order(chip: str, topology: str) -> list[str]:
    """The operations of the backward loop, in order."""
    model = small(embed=1024, mlp=4096, heads=16, head_dim=128, kv_heads=8)
    plan = plan_of({"fsdp": 8, "tensor": 2}, seq_len=2048, global_batch=16)
    body = program_of(model, plan, Slice(chip, topology)).body
    (backward,) = (
        op
        for op in body
        if isinstance(op, Loop) and op.name.startswith("layers") and op != loop(body, "layers")
    )
    return [op.name for op in backward.body]


def test_the_gradient_of_the_mlp_runs_while_the_attention_is_summed_again() -> None:
    """Not on v5p, where the core adds up."""
    for chip, topology, beside in (("7x", "2x2x2", True), ("v5p", "2x2x4", False)):
        names = order(chip, topology)
        summed = names.index("all-reduce/bwd/layer/out@tensor")
        read = names.index("bwd/layer/mlp_norm")
        between = [
            name for name in names[summed + 1 : read] if name.startswith("bwd/layer/wo_mlp/dx")
        ]
        assert bool(between) == beside
