"""Dropout: random numbers that cross HBM, and no other work."""

from typing import Any

import pytest
from plans import calcs, partitioned_of, plan_of, program_of, small

from tpusim import export_jax
from tpusim.base import ModelError, TpusimError
from tpusim.hardware import Slice
from tpusim.program import Loop, Op, VectorWork
from tpusim.simulation import simulate

LAYERS, EMBED, HEADS = 3, 64, 8
SEQ, BATCH, DEVICES = 128, 8, 8
PLAN = plan_of({"fsdp": DEVICES}, seq_len=SEQ, global_batch=BATCH, remat="full")
POD = Slice("v5e", "2x4")


def names(**keys: Any) -> set[str]:
    nodes = [node.op.name for node, _ in calcs(partitioned_of(small(**keys), PLAN))]
    return {name for name in nodes if name.endswith(("_random", "_dropout"))}


@pytest.mark.parametrize("kernel", ["flash", "dot"])
@pytest.mark.parametrize("more", [{}, {"parallel": True}, {"post_norms": True}])
def test_embeddings_results_and_probabilities_are_dropped(
    kernel: str, more: dict[str, Any]
) -> None:
    assert not names(attention=kernel, **more)
    dropped = {"embedded", "layer/attn", "layer/mlp"}
    dropped |= {"layer/probs"} if kernel == "dot" else set()
    expected = {f"{one}_{end}" for one in dropped for end in ("random", "dropout")}
    assert names(attention=kernel, dropout=0.1, **more) == expected


@pytest.mark.parametrize("experts", [{}, {"shared_mlp": 128}])
def test_results_of_experts_are_dropped(experts: dict[str, int]) -> None:
    given = {"experts": 4, "experts_per_token": 2, **experts}
    assert "layer/mlp_dropout" in names(dropout=0.1, **given)


@pytest.mark.parametrize("remat", ["full", "minimal", "none"])
@pytest.mark.parametrize("kernel", ["flash", "dot"])
def test_it_adds_time_and_no_flops(kernel: str, remat: str) -> None:
    """The backward pass needs the random numbers, and not what they are multiplied with."""
    plan = plan_of({"fsdp": 4, "tensor": 2}, seq_len=SEQ, global_batch=BATCH, remat=remat)
    without, dropped = (
        simulate(small(attention=kernel, dropout=share), plan, POD) for share in (0.0, 0.1)
    )
    assert dropped.flops == without.flops
    assert dropped.step_time_s > without.step_time_s


def vector_bytes(ops: tuple[Op, ...], end: str) -> float:
    """Return the HBM bytes of the vector groups whose name has an end, loops unrolled."""
    found = 0.0
    for op in ops:
        if isinstance(op, Loop):
            found += op.trips * vector_bytes(op.body, end)
        elif isinstance(work := getattr(op, "work", None), VectorWork) and end in op.name:
            found += work.read_bytes + work.write_bytes
    return found


def test_random_numbers_cross_hbm_as_32_bits_an_element() -> None:
    """Drawn in the forward pass and once more by the checkpoint; the backward pass reads them.

    Those of the embeddings fit on the chip.
    """
    program = program_of(small(attention="dot", dropout=0.1), PLAN, POD)
    tokens = BATCH * SEQ // DEVICES
    scores = BATCH // DEVICES * HEADS * SEQ * SEQ
    assert vector_bytes(program.body, "layer/mlp_random") == 2 * LAYERS * 4 * tokens * EMBED
    assert vector_bytes(program.body, "layer/probs_random") == 2 * LAYERS * 4 * scores
    assert (
        vector_bytes(program.body, "layer/mlp_dropout") == 2 * LAYERS * (2 + 4 + 2) * tokens * EMBED
    )


@pytest.mark.parametrize("share", [1.0, 1.5])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ModelError, match=r"leaves no element; write a share below 1, such as 0\.1"):
        small(dropout=share)


def test_it_is_not_written_as_jax() -> None:
    with pytest.raises(TpusimError, match="_random is an element-wise group that says its cost"):
        export_jax(small(dropout=0.1), PLAN, POD)
