"""Laws of a loss that is computed over blocks of the vocabulary, one after the other."""

from typing import Any

import pytest
from plans import flat, program_of

from tpusim.base import PlanError
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Compute, VectorWork
from tpusim.results import PlanResult
from tpusim.simulation import simulate

MODEL = Transformer(layers=2, embed=1024, mlp=4096, heads=8, head_dim=128, vocab=64000)
POD = Slice("v5p", "2x2x4")
TOKENS = 16 * 2048
MESHES = ({"fsdp": 16}, {"data": 16}, {"fsdp": 4, "tensor": 4}, {"fsdp": 8, "dcn_data": 2})


def result(mesh: dict[str, int] = MESHES[0], **keys: Any) -> PlanResult:
    slices = 2 if "dcn_data" in mesh else 1
    pod = Slice("v5p", "2x2x4" if slices == 1 else "2x2x2", num_slices=slices)
    return simulate(MODEL, Plan(mesh=mesh, seq_len=2048, global_batch=16, **keys), pod)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("blocks", [2, 8, 40])
def test_blocks_compute_the_logits_once_more_and_nothing_else(
    mesh: dict[str, int], blocks: int
) -> None:
    whole, cut = result(mesh), result(mesh, vocab_blocks=blocks)
    assert cut.flops.model == whole.flops.model
    assert cut.flops.recompute - whole.flops.recompute == 2 * TOKENS * 1024 * 64000
    assert cut.flops.padding == whole.flops.padding


@pytest.mark.parametrize("mesh", MESHES)
def test_weights_and_their_state_are_as_many(mesh: dict[str, int]) -> None:
    whole, cut = (result(mesh, vocab_blocks=blocks) for blocks in (1, 8))
    for item in ("weights", "optimizer state"):
        assert cut.memory_bytes[item] == pytest.approx(whole.memory_bytes[item], rel=1e-6)


def test_logits_of_one_block_are_in_memory() -> None:
    """Two arrays of f32 at a time, the logits and their gradient."""
    whole, cut = (result(vocab_blocks=blocks, logits_dtype="f32") for blocks in (1, 8))
    assert whole.hbm_peak_bytes - cut.hbm_peak_bytes > TOKENS / 16 * 64000 * 4


def test_labels_by_index_are_scattered_in_each_block() -> None:
    """One element for each token."""
    plan = Plan(
        mesh={"fsdp": 16}, seq_len=2048, global_batch=16, logits_dtype="f32", vocab_blocks=8
    )
    mask, index = (
        sum(
            op.work.scattered * times
            for op, times in flat(program_of(MODEL, plan.replace(loss_labels=labels), POD).body)
            if isinstance(op, Compute) and isinstance(op.work, VectorWork)
        )
        for labels in ("mask", "index")
    )
    assert (mask, index) == (0, 8 * TOKENS / 16)


def test_scattered_elements_follow_one_another() -> None:
    keys: dict[str, Any] = {"loss_labels": "index", "vocab_blocks": 8, "logits_dtype": "f32"}
    plan = Plan(mesh={"fsdp": 16}, seq_len=2048, global_batch=16, **keys)
    chip = load_chip("v5p")
    slow, fast = (
        simulate(MODEL, plan, Slice(chip.replace(scatter_element=seconds), "2x2x4")).step_time_s
        for seconds in ("1 us", "0 us")
    )
    assert slow - fast == pytest.approx(8 * TOKENS / 16 * 1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"vocab_blocks": 7},
         "plan.vocab_blocks is 7, which does not divide model.vocab, 64000; write 8"),
        ({"vocab_blocks": 8, "vocab_tiles": 2},
         "plan.vocab_blocks is 8 and plan.vocab_tiles is 2; set only one of them"),
        ({"vocab_blocks": 8, "mesh": {"fsdp": 8, "stage": 2}, "microbatches": 2},
         "plan.vocab_blocks is 8, which a pipeline cannot have; write vocab_tiles instead, or "
         "stage = 1"),
        ({"vocab_blocks": 0},
         "plan.vocab_blocks is 0; it must be a whole number of at least 1"),
        ({"loss_labels": "gather"},
         "plan.loss_labels is 'gather': valid are index, mask, take"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        simulate(MODEL, Plan(**{"mesh": {"fsdp": 16}, "seq_len": 2048, "global_batch": 16} | keys),
                 POD)  # fmt: skip
    assert str(raised.value) == sentence


def test_a_head_that_is_the_embedding_has_no_blocks() -> None:
    plan = Plan(mesh={"fsdp": 16}, seq_len=2048, global_batch=16, vocab_blocks=8)
    with pytest.raises(PlanError, match=r"the head of transformer is its embedding; write"):
        simulate(MODEL.replace(tied_embeddings=True), plan, POD)


def test_the_head_of_blocks_is_no_matrix_of_a_layer() -> None:
    """Muon has Adam for it, as without blocks, and it is not quantised either."""
    whole, cut = (result(optimizer="muon", vocab_blocks=blocks) for blocks in (1, 8))
    assert cut.flops.optimizer == whole.flops.optimizer
    plan = Plan(mesh={"fsdp": 16}, seq_len=2048, global_batch=16, vocab_blocks=8)
    program = str(program_of(MODEL, plan.replace(matmul_dtype="int8"), POD))
    assert "quantise" in program
    assert "quantise/head" not in program
