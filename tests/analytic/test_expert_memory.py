"""Four layers of experts, compiled for 16 to 256 chips, and what they hold at the peak.

4096 tokens a sequence, two square products in place of attention, all recomputed, f32 weights that
are updated by their gradients (libtpu 0.0.42.1; live buffers at the peak of the buffer assignment,
which is in a layer's backward pass). `PROGRAMS` has them all.

Of the first one, by a mask on v6e 4x4, all that is live is known, 7,703 MiB: 4 tensors of 560 MiB
as wide as the experts, 3 gathered matrices of 224, the mask 161, 3 tensors of slots of 160, and 6
of tokens of 64. With MaxText's flags it is 8,031: a tensor of slots less, but two matrices'
gradients of 224 wait for their reductions. By a sort the hidden tensor is computed again together
with its gradients, in their place, and over an axis of 4 a ragged exchange leaves 4 times the rows.

These layers were written by hand, and the backward pass writes their mask and its gradient
(`with_written_masks`); those of exported plans never are.
"""

from dataclasses import replace
from functools import cache
from math import prod
from statistics import median
from typing import Any

import pytest
from accounts import memory_held
from plans import MIB, lowered
from steps import partitioned_graph

from tpusim.base import Phase
from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.graph import (
    COMPUTE,
    Graph,
    GraphWriter,
    Op,
    Pointwise,
    Remat,
    Scan,
    Tensor,
    training_step,
)
from tpusim.hardware import Slice, placements
from tpusim.models import ExpertRouting, pieces
from tpusim.plan import Plan

COMPILED = {
    "weights": 3 * 448 + 2 * 16,
    "cast weights": 3 * 224 + 2 * 8,
    "gradients": 3 * 448 + 2 * 16,
    "saved activations": 256,
    "combine_mask": 161,
    "one layer": 4 * 560 + 3 * 224 + 161 + 3 * 160 + 6 * 64,
    "total": 7703,
}

WIDE = {"embed": 4096, "width": 4096, "expert": 8, "choice": 2, "expert_mlp": 14336}
SIXTEEN = WIDE | {"expert": 16, "expert_mlp": 8192}
FINE = {"embed": 2048, "width": 2048, "expert": 64, "choice": 6, "expert_mlp": 1408}
BOTH, ONE = {"fsdp": 4, "expert": 4}, {"fsdp": 16}
MT = {"style": "maxtext"}
ALL, MEAN = {"capacity_factor": 0.0}, {"capacity_factor": 0.0, "expert_buffer": 1.0}

Program = tuple[str, str, dict[str, int], int, dict[str, int], dict[str, Any], float, float]
PROGRAMS: tuple[Program, ...] = (
    # chip, topology, mesh, sequences a chip, dimensions, plan, MiB, within; by a mask, or by a sort
    ("v6e", "4x4", BOTH, 2, WIDE, {}, 7703, 0.05),
    ("v6e", "4x4", BOTH, 2, WIDE, MT, 8031, 0.1),
    ("v6e", "4x4", ONE, 2, WIDE, {}, 9159, 0.05),
    ("v6e", "4x4", ONE, 2, WIDE, MT, 10495, 0.11),
    ("v6e", "16x16", {"fsdp": 32, "expert": 8}, 2, WIDE, {}, 3417, 0.12),
    ("v5p", "4x4x4", {"fsdp": 16, "expert": 4}, 2, WIDE, {}, 5057, 0.07),
    ("v5e", "4x4", BOTH, 1, WIDE, {}, 6182, 0.07),
    ("v5e", "4x4", {"expert": 16}, 1, SIXTEEN, {}, 5327, 0.05),
    ("v5e", "4x4", {"expert": 16}, 1, FINE, {}, 2598, 0.07),
    ("7x", "2x2x2", BOTH, 2, WIDE, {}, 8312, 0.12),
    ("v6e", "4x4", ONE, 1, WIDE, ALL, 7379, 0.05),
    ("v6e", "4x4", BOTH, 1, WIDE, ALL, 8021, 0.1),
    ("v6e", "4x4", BOTH, 1, WIDE, MEAN, 5397, 0.05),
)
"""The first of the sorted ones has megablox, the others `ragged_dot`; the last one exchanges whole
buffers."""


def experts(routing: ExpertRouting, sizes: dict[str, int], batch: int) -> Graph:
    w = GraphWriter("experts", {"batch": batch, "seq": 4096} | sizes)
    given = w.input("x", ("batch", "seq", "embed"), COMPUTE)

    def layer(w: GraphWriter, x: Tensor) -> Tensor:
        narrow = w.dense("wq", pieces.norm(w, "attn_norm", x), "width")
        mid = w.add("mid", x, w.dense("wo", narrow, "embed"))
        normed = pieces.norm(w, "mlp_norm", mid)
        return w.add("layer_out", mid, pieces.experts(w, normed, routing, gated=True))

    last = w.layers("layer", 4, given, layer)
    squared = w.tensor("loss", ("batch", "seq"), "f32")
    return w.graph(w.pointwise("loss", (last,), squared, 1.0, over=("embed",)))


def with_written_masks(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return operations whose backward pass writes masks, as these layers do."""
    return tuple(map(_with_written_mask, ops))


def _with_written_mask(op: Op) -> Op:
    if isinstance(op, Scan):
        return replace(op, body=with_written_masks(op.body))
    if isinstance(op, Pointwise) and op.phase is not Phase.FORWARD and "masks" in op.name:
        return replace(op, generated=False, alone=True)
    return op


@cache
def held(place: int) -> dict[str, float]:
    """MiB at the peak of a program, by the items of the report.

    total: what is held, with its input; heap: with what lies between buffers, too.
    """
    chip, topology, mesh, sequences, sizes, changes, _, _ = PROGRAMS[place]
    pod, batch = Slice(chip, topology), sequences * prod(mesh.values())
    plan = Plan(
        mesh=mesh, seq_len=4096, global_batch=batch, optimizer="sgd", grad_dtype="f32",
        **({"capacity_factor": 1.25} | changes),
    )  # fmt: skip
    forward = experts(ExpertRouting(capacity_factor=plan.experts.capacity_factor), sizes, batch)
    graph = training_step(forward, Remat("full"))
    graph = replace(graph, ops=with_written_masks(graph.ops))
    placement = placements(pod, plan.mesh)[0]
    program = lowered(graph, partitioned_graph(graph, plan), plan, pod, placement)
    timeline = run([cost_program(program, pod, placement)])
    found = memory_held(program, timeline)
    given = sequences * 4096 * sizes["embed"] * 2
    tensors = {one.tensor: one.bytes for one in timeline.memory[0].held}
    items = {
        **found,
        "combine_mask": tensors.get("bwd/layer/combine_mask", 0),
        "one layer": found["activations"] + found["gathered weights"],
        "total": sum(held.bytes for held in timeline.memory[0].held) + given,
        "heap": sum(found.values()) + given,
    }
    return {name: nbytes / MIB for name, nbytes in items.items()}


@pytest.mark.parametrize("item", COMPILED)
def test_each_item_is_within_ten_percent(item: str) -> None:
    assert held(0)[item] == pytest.approx(COMPILED[item], rel=0.1)


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_its_whole_is_the_compilers(place: int) -> None:
    *_, compiled, within = PROGRAMS[place]
    assert held(place)["total"] == pytest.approx(compiled, rel=within)


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_the_heap_is_the_compilers_where_the_order_of_products_is(place: int) -> None:
    """Buffers of experts leave gaps; three programs multiply for their weights earlier than we."""
    above = {4: 0.18, 8: 0.08, 11: 0.14}
    *_, compiled, within = PROGRAMS[place]
    assert held(place)["heap"] == pytest.approx(compiled, rel=above.get(place, within))


def test_half_of_all_are_within_seven_percent() -> None:
    errors = [abs(held(place)["total"] / row[-2] - 1) for place, row in enumerate(PROGRAMS)]
    assert median(errors) <= 0.068
