"""What bounds small models and pure data parallelism, in bytes and passes worked by hand.

The passes are those of compiled programs: plain llamas of 130M to 1.2B parameters, 16-way FSDP on
v5p 2x2x4, and a 3B one with data parallelism over v5p 8x8x8 (libtpu 0.0.42.1).
"""

import pytest
from plans import flat, loop, program_of

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, Program
from tpusim.simulation import simulate

LLAMA_130M = Transformer(layers=6, embed=512, mlp=1792, heads=8, vocab=128256, attention="dot")
TOKENS = 8 * 4096
PLAN = Plan(mesh={"fsdp": 16}, seq_len=4096, global_batch=128)
POD = Slice("v5p", "2x2x4")


@pytest.fixture(scope="module")
def llama() -> Program:
    return program_of(LLAMA_130M, PLAN, POD)


def of(program: Program, name: str) -> Compute:
    (found,) = (op for op, _ in flat(program.body) if op.name == name)
    assert isinstance(found, Compute)
    return found


def test_the_loss_reads_the_logits_once_and_its_gradient_reads_and_writes_them(
    llama: Program,
) -> None:
    """They stay in bf16 even where the loss is in f32, as conversions are fused; the maximum comes
    out of the matmul. With its three matmuls the section passes five times over the logits, and
    eight more for the head's gradient, whose ring reads them each step.
    """
    logits, ids = TOKENS * 128256 * 2, TOKENS * 4
    assert of(llama, "loss").work.read_bytes == logits + ids
    gradient = of(llama, "loss/d").work
    assert gradient.read_bytes == pytest.approx(logits, rel=1e-4)
    assert gradient.write_bytes == logits
    ring = loop(llama.body, "logits/dw/ring")
    chunk = next(op for op in ring.body if op.name == "logits/dw/chunk")
    assert ring.trips * chunk.work.read_bytes == pytest.approx(8 * logits, rel=0.01)


def test_scores_pass_through_hbm_fifteen_times_a_layer(llama: Program) -> None:
    """Four times forward (made, normalised: read and written, used), four again, and seven for the
    gradients of probabilities and of scores, with the probabilities' reads: 15 times 2 bytes. The
    compiled program with a bf16 softmax has 14, one in f32 28.
    """
    scores = 8 * 8 * 4096**2 * 2
    passes = 0.0
    for name in ("layers", "layers/d"):
        for op, _ in flat(loop(llama.body, name).body):
            if isinstance(op, Compute):
                work = op.work
                passes += round((work.read_bytes + work.write_bytes) / scores - 0.2)
    assert passes == 15


def test_a_ring_of_small_shards_fills_a_quarter_of_the_array(llama: Program) -> None:
    """Two shards of 32 rows are contracted a step, on an array of 128; and the sum of the products,
    1,792 wide, is passed over twice a step."""
    ring = loop(loop(llama.body, "layers").body, "layer/wi_0/ring")
    assert ring.trips == 4
    chunks = [op.work for op in ring.body if "/chunk" in op.name]
    assert [work.k for work in chunks] == [64, 64]
    result = TOKENS * 1792 * 2
    own = (TOKENS * 512 + 512 * 1792) * 2 / 8
    total = sum(work.read_bytes + work.write_bytes for work in chunks)
    assert total == pytest.approx(4 * result + 2 * own)


HONEYCRISP = Transformer(layers=26, embed=3072, mlp=8064, heads=24, kv_heads=8, vocab=49152,
                         tied_embeddings=True)  # fmt: skip


def data(topology: str, chips: int) -> Plan:
    return Plan(mesh={"data": chips}, seq_len=4096, global_batch=4 * chips)


def test_a_replicated_optimizer_moves_every_weight_on_every_chip() -> None:
    """Gradients of layers are stacked (2 + 4 bytes a weight), all are read for their norm (2), and
    Adam reads 4 + 8 + 2 bytes and writes 4 + 8."""
    program = program_of(HONEYCRISP, data("8x8x8", 512), Slice("v5p", "8x8x8"))
    weights = HONEYCRISP.parameter_count
    updates = [op for op in program.body if op.name.startswith("update/")]
    moved = sum(op.work.read_bytes + op.work.write_bytes for op in updates)
    assert moved == 26 * weights
    assert of(program, "gradient_norm").work.read_bytes == 2 * weights
    layers = loop(program.body, "layers/d")
    (stack,) = (op for op in layers.body if op.name.startswith("stack/"))
    inside = weights - 49152 * 3072 - 3072
    assert layers.trips * (stack.work.read_bytes + stack.work.write_bytes) == 6 * inside


def test_gradients_of_scanned_layers_are_reduced_in_the_loop_and_waited_for() -> None:
    program = program_of(HONEYCRISP, data("8x8x8", 512), Slice("v5p", "8x8x8"))
    inside = [op for op, _ in flat(loop(program.body, "layers/d").body)
              if isinstance(op, Collective)]  # fmt: skip
    assert {(str(op.kind), str(op.mode)) for op in inside} == {("all-reduce", "sync")}
    assert sum(op.bytes for op in inside) == pytest.approx(
        2 * (HONEYCRISP.parameter_count - 49152 * 3072 - 3072) / 26
    )


def test_more_chips_in_pure_data_change_only_the_all_reduce() -> None:
    """At the same batch a chip: 64, 512 and 2,048 chips compute the same for the same time."""
    sizes = {"4x4x4": 64, "8x8x8": 512, "8x16x16": 2048}
    results = [simulate(HONEYCRISP, data(t, n), Slice("v5p", t)) for t, n in sizes.items()]
    work = [{k: s for k, s in r.breakdown_s.items() if "data" not in k} for r in results]
    assert work[0] == work[1] == work[2]
    exposed = [r.breakdown_s["exposed data"] for r in results]
    assert exposed[0] < exposed[1] < exposed[2]
    for result, seconds in zip(results, exposed, strict=True):
        assert result.step_time_s == pytest.approx(sum(work[0].values()) + seconds)


def test_every_ring_is_a_loop_of_the_layer(llama: Program) -> None:
    """The forward gathers of all seven matrices, as compiled."""
    rings = [op.name for op in loop(llama.body, "layers").body if isinstance(op, Loop)]
    names = ("wq", "wk", "wv", "wo", "wi_0", "wi_1", "wo_mlp")
    assert rings == [f"layer/{name}/ring" for name in names]
