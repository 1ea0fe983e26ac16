"""The gradient of the logits of one sequence: whether it is in memory."""

import pytest
from plans import flat, plan_of, program_of, small

from tpusim.hardware import Slice

POD = Slice("v5p", "2x2x4")
MODEL = small(vocab=8192)


@pytest.mark.parametrize(
    ("mesh", "batch", "shared"),
    [({"data": 16}, 16, True), ({"data": 4, "tensor": 4}, 4, False), ({"data": 16}, 32, False)],
)
def test_the_gradient_of_one_sequence_is_shared_where_its_vocabulary_is_whole(
    mesh: dict[str, int], batch: int, shared: bool
) -> None:
    """Written once for two matmuls, or computed in each of them."""
    body = program_of(MODEL, plan_of(mesh, seq_len=1024, global_batch=batch), POD).body
    taken = {alloc.tensor for op, _ in flat(body) for alloc in op.allocs}
    assert ("d(logits)" in taken) == shared
