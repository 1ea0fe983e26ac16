"""The gradients that a plan reduces together are told apart."""

import tpusim as ts
from tpusim.program import Collective, dumps, loads, walk_ops


def test_merged_gradients_name_their_weights_and_sum_to_the_bytes() -> None:
    model = ts.models.Transformer(name="m", layers=2, embed=256, mlp=512, heads=4, vocab=1024)
    plan = ts.Plan(mesh={"data": 4}, seq_len=256, global_batch=8)
    program = ts.simulate(model, plan, ts.Slice("v5e", "2x2")).program
    found = [op for op, _ in walk_ops(program.body) if isinstance(op, Collective) and op.parts]
    assert found
    for op in found:
        assert sum(part.bytes for part in op.parts) == op.bytes
        assert all(part.source == "" for part in op.parts)
    merged = {part.scope: part.bytes for part in found[0].parts}
    assert merged["d(layer/wq)"] == 2 * 256 * 256
    assert merged["d(layer/wi_0)"] == 2 * 256 * 512
    assert loads(dumps(program)) == program
