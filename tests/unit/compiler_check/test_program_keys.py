"""What the collectives of a program move: from lines, axes and sizes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from compiler_parts import ComparedCollective
from twins import lines_of, place, planned, replayed

from tpusim.base import Phase
from tpusim.compiler_check import compare
from tpusim.program import (
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Loop,
    Mode,
    Op,
    Program,
    VectorWork,
)

MIB = 2.0**20
PLAN = planned("asynchronous")
WEIGHT = 2 * 512 * 2048 / 4
"""Bytes of wi_0 or wo_mlp in bf16 on one device, sharded four ways over `tensor`, gathered."""


def moved(*body: Op) -> dict[tuple[str, str], ComparedCollective]:
    """What a program moves, by tensor and pass; a line of work says which file is meant."""
    work = Compute(
        name="work", phase=Phase.FORWARD, work=VectorWork(MIB, MIB, 0),
        source=place(PLAN, "layer/wq"), deps=tuple(Dep(name) for name in _names(body)),
    )  # fmt: skip
    program = Program(name="step", axes=tuple(PLAN.plan.mesh.items()), body=(*body, work))
    found = compare(PLAN, replayed(program, PLAN), lines_of(PLAN)).collectives
    return {(row.what, row.when): row for row in found if row.program is not None}


def _names(body: Sequence[Op]) -> list[str]:
    return [op.name for op in body if not isinstance(op, Loop)]


def collective(
    kind: CollectiveKind,
    operation: str,
    nbytes: float,
    phase: Phase = Phase.FORWARD,
    axis: str = "fsdp",
    mode: Mode = Mode.SYNC,
    name: str = "x",
) -> Collective:
    return Collective(
        name=name, phase=phase, kind=kind, axes=(axis,), bytes=nbytes, dtype="bf16", mode=mode,
        source=place(PLAN, operation),
    )  # fmt: skip


def ring(operation: str, weights: float, phase: Phase = Phase.BACKWARD) -> Loop:
    """Permutes, in both layers, of so many times what a ring of four sends of a weight."""
    chunk = weights * WEIGHT * 3 / 4 / 6
    each = (
        collective(CollectiveKind.PERMUTE, operation, chunk, phase, mode=Mode.ASYNC, name=f"p{n}")
        for n in range(6)
    )
    return Loop(name="rings", trips=2, body=tuple(each))


GATHER, REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE
ACTIVATION = 2 * 8 * 1024 * 512
"""Bytes of [batch, seq, embed] in bf16, the batch of 32 sharded four ways."""


def in_layers(op: Collective) -> Loop:
    return Loop(name="layers", trips=2, body=(op,))


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (collective(GATHER, "layer/wi_0", WEIGHT), ("layer/wi_0", "forward")),
        (
            collective(GATHER, "layer/wi_0", WEIGHT, Phase.RECOMPUTE),
            ("layer/wi_0", "backward"),
        ),
        (collective(GATHER, "layer/wi_0", WEIGHT, Phase.BACKWARD), ("layer/wi_0", "backward")),
        (
            collective(CollectiveKind.REDUCE_SCATTER, "layer/wi_0", WEIGHT, Phase.BACKWARD),
            ("layer/wi_0", "gradient"),
        ),
        (
            collective(REDUCE, "layer/wo", ACTIVATION, axis="tensor"),
            ("layer/out", "forward"),
        ),
        (
            collective(REDUCE, "layer/wv", ACTIVATION, Phase.BACKWARD, "tensor"),
            ("layer/attn_norm", "backward"),
        ),
    ],
)
def test_the_size_says_which_tensor_of_an_operation_is_moved(
    op: Collective, found: tuple[str, str]
) -> None:
    assert list(moved(in_layers(op))) == [found]


def test_the_gradient_of_what_only_a_sum_reads_is_that_of_the_sum() -> None:
    """The result of wo is added to the residual: one tensor is the gradient of both."""
    (backward,) = moved(
        in_layers(collective(GATHER, "layer/wo", ACTIVATION, Phase.BACKWARD, "tensor"))
    )
    assert backward == ("layer/mid", "backward")
    (again,) = moved(
        in_layers(collective(REDUCE, "layer/wo", ACTIVATION, Phase.RECOMPUTE, "tensor"))
    )
    assert again == ("layer/out", "backward")


def test_permutes_of_the_embedding_are_no_ring() -> None:
    halo = collective(CollectiveKind.PERMUTE, "embed", MIB, Phase.BACKWARD, mode=Mode.ASYNC)
    rows = moved(halo)
    (row,) = rows.values()
    assert list(rows) == [("embedding", "backward")]
    assert row.program is not None
    assert row.program.modes == {"async": MIB}


def test_what_is_moved_for_all_layers_at_once_is_their_weight() -> None:
    stacked = collective(GATHER, "layer/wi_0", 2 * WEIGHT)
    assert list(moved(stacked)) == [("layer/wi_0", "forward")]


def test_what_layouts_pad_is_not_compared() -> None:
    """A program's gather of twice the weight, half of which is padding, is one of the weight."""
    gather = replace(collective(GATHER, "layer/wi_0", 2 * WEIGHT), padded=WEIGHT)
    (row,) = moved(in_layers(gather)).values()
    assert row.wire_bytes[1] == pytest.approx(2 * WEIGHT * 3 / 4), "in two layers"


@pytest.mark.parametrize("weights", [1.0, 1.13, 1.67])
def test_a_ring_of_about_one_weight_scatters_its_gradient(weights: float) -> None:
    (found,) = moved(ring("layer/wo_mlp", weights)).items()
    key, row = found
    assert key == ("layer/wo_mlp", "gradient")
    assert row.program is not None
    assert row.program.mode == "ring"
    assert row.program.algorithm == "collective matmul"
    assert row.program.wire_bytes == pytest.approx(2 * weights * WEIGHT * 3 / 4)


@pytest.mark.parametrize("weights", [2.0, 2.27, 2.67])
def test_a_ring_of_about_two_gathers_the_weight_as_well(weights: float) -> None:
    rows = moved(ring("layer/wo_mlp", weights))
    assert set(rows) == {("layer/wo_mlp", "backward"), ("layer/wo_mlp", "gradient")}
    for row in rows.values():
        assert row.wire_bytes[1] == pytest.approx(weights * WEIGHT * 3 / 4)


def test_beside_a_gather_a_ring_is_for_the_gradient_whatever_it_sends() -> None:
    gather = in_layers(collective(GATHER, "layer/wo_mlp", WEIGHT, Phase.BACKWARD))
    rows = moved(gather, ring("layer/wo_mlp", 2.0))
    assert rows["layer/wo_mlp", "backward"].wire_bytes[1] == pytest.approx(2 * WEIGHT * 3 / 4)
    assert rows["layer/wo_mlp", "gradient"].wire_bytes[1] == pytest.approx(4 * WEIGHT * 3 / 4)


def test_beside_a_reduction_a_ring_gathers() -> None:
    scatter = collective(CollectiveKind.REDUCE_SCATTER, "layer/wo_mlp", WEIGHT, Phase.BACKWARD)
    rows = moved(in_layers(scatter), ring("layer/wo_mlp", 1.0))
    assert rows["layer/wo_mlp", "gradient"].wire_bytes[1] == pytest.approx(2 * WEIGHT * 3 / 4)
    assert rows["layer/wo_mlp", "backward"].wire_bytes[1] == pytest.approx(2 * WEIGHT * 3 / 4)


def test_forward_and_recomputed_rings_gather() -> None:
    assert list(moved(ring("layer/wi_0", 1.0, Phase.FORWARD))) == [("layer/wi_0", "forward")]
    assert list(moved(ring("layer/wi_0", 2.2, Phase.RECOMPUTE))) == [("layer/wi_0", "backward")]


def test_a_collective_without_a_line_is_the_one_of_the_plan_that_is_alike() -> None:
    unknown = collective(REDUCE, "nothing", 2 * 512, Phase.BACKWARD, name="reduce")
    assert unknown.source == ""
    assert list(moved(unknown)) == [("final_norm_scale", "gradient")]
    strange = collective(REDUCE, "nothing", 12345678, Phase.BACKWARD, name="strange")
    assert list(moved(strange)) == [("strange", "backward")]


def test_a_ring_without_a_line_is_for_what_the_plan_moves_of_that_size() -> None:
    """Of two of four chunks in each permute: backward, only wo_mlp is gathered so in a layer."""
    chunks = WEIGHT * 2 / 4
    permute = collective(CollectiveKind.PERMUTE, "nothing", chunks, Phase.BACKWARD, mode=Mode.ASYNC)
    assert list(moved(in_layers(permute))) == [("layer/wo_mlp", "backward")]
