"""The passes of a softmax and of a cross entropy: which operations have their work."""

from typing import Any

import pytest
from plans import flat, plan_of, program_of, small

from tpusim.hardware import Slice
from tpusim.program import Compute, MatmulWork, VectorWork

V5P, V6E = Slice("v5p", "2x2x4"), Slice("v6e", "4x4")
VOCAB, SEQ = 8192, 1024


def works(model: dict[str, Any], plan: dict[str, Any], pod: Slice) -> dict[str, Any]:
    """The work of each operation of a step, by name."""
    given = {"seq_len": SEQ, **plan}
    body = program_of(small(vocab=VOCAB, **model), plan_of(given.pop("mesh"), **given), pod).body
    return {op.name: op.work for op, _ in flat(body) if isinstance(op, Compute)}


@pytest.mark.parametrize(("batch", "apart"), [(16, True), (64, False)])
def test_the_gradient_of_logits_is_in_both_matmuls_that_read_it(batch: int, apart: bool) -> None:
    """Or in a pass of its own, where a device of v5p has one sequence (`share-gradient`)."""
    made = works({}, {"mesh": {"data": 16}, "global_batch": batch}, V5P)
    logits = batch / 16 * SEQ * VOCAB
    readers = [made[f"logits/{which}"].epilogue_flops for which in ("dx", "dw")]
    assert readers == [0 if apart else pytest.approx(13 * logits, rel=1e-3)] * 2
    assert made["loss/d"].flops == (pytest.approx(13 * logits, rel=1e-3) if apart else 0)


def test_maxima_are_in_the_matmul_of_the_logits_or_in_a_pass_after_a_ring() -> None:
    """In tiles, whose head moves in a ring, the pass reads the logits twice."""
    made = works({}, {"mesh": {"data": 16}, "global_batch": 64}, V5P)
    logits = 4 * SEQ * VOCAB
    assert made["logits"].epilogue_flops == logits
    assert made["loss"].flops == pytest.approx(12 * logits, rel=1e-3)
    tiled = works(
        {"embed": 1024, "mlp": 4096},
        {"mesh": {"fsdp": 16}, "global_batch": 256, "vocab_tiles": 2},
        V5P,
    )
    tile = 16 * SEQ * VOCAB / 2
    assert tiled["loss"].flops == pytest.approx(13 * tile, rel=1e-3)
    assert tiled["loss"].read_bytes == pytest.approx(2 * 2 * tile, rel=1e-3)


def test_a_tile_sums_exponentials_again_for_its_backward_pass() -> None:
    made = works({}, {"mesh": {"data": 16}, "global_batch": 64, "vocab_tiles": 2}, V6E)
    tile = 4 * SEQ * VOCAB / 2
    assert made["bwd/logits"].epilogue_flops == tile
    assert made["bwd/loss/d"] == VectorWork(2 * tile, 0.0, 9 * tile, compiled=True)
    assert made["bwd/logits/dx"].epilogue_flops == pytest.approx(13 * tile, rel=1e-3)


@pytest.mark.parametrize(("pod", "more"), [(V5P, 0), (V6E, 4)])
def test_scores_of_wide_heads_are_multiplied_with_their_softmax(pod: Slice, more: int) -> None:
    """An exponential takes four operations more on v6e."""
    made = works(
        {"attention": "dot", "head_dim": 128}, {"mesh": {"data": 16}, "global_batch": 64}, pod
    )
    scores = 4 * 8 * SEQ**2
    assert made["layer/scores"].epilogue_flops == 5.5 * scores
    assert made["layer/softmax"] == VectorWork(2 * scores, 0.0, (10 + more) * scores, compiled=True)
    assert made["layer/context"].epilogue_flops == (11 + more) * scores
    assert made["bwd/layer/context/dx"].epilogue_flops == (13 + more) * scores
    assert made["bwd/layer/softmax/d"].flops == (18 + more) * scores


def test_scores_of_narrow_heads_keep_three_passes() -> None:
    made = works(
        {"attention": "dot", "head_dim": 64}, {"mesh": {"data": 16}, "global_batch": 64}, V5P
    )
    work = made["layer/scores"]
    assert isinstance(work, MatmulWork)
    assert work.epilogue_flops == 0
    assert made["layer/softmax"].write_bytes > 0
