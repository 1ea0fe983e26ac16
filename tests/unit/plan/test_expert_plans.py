"""Experts on a mesh: how their tensors lie, what that moves, and what cannot be."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from lowered import busiest_load
from plans import any_program_of, comms, flat, partitioned_of, payload, plan_of, sizes_of, small

from tpusim.base import Phase, PlanError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Purpose, loads
from tpusim.program import Compute, MatmulWork
from tpusim.simulation import simulate

MESH = {"fsdp": 2, "expert": 4}
E, F, BOTH = ("expert",), ("fsdp",), ("fsdp", "expert")
MASK = {"capacity_factor": 1.0}


def moe(**changes: Any) -> Transformer:
    return small(**({"experts": 8, "experts_per_token": 2, "expert_mlp": 128} | changes))


def test_what_lists_the_experts_first_has_their_axis_and_the_batch_has_it_elsewhere() -> None:
    layouts = partitioned_of(moe(shared_mlp=96), plan_of(MESH, **MASK)).layouts
    assert layouts["layer/dispatched"] == (E, F, (), ())
    assert layouts["layer/expert_mlp_in_0"] == (E, F, (), ())
    assert layouts["layer/mlp_norm"] == (BOTH, (), ())
    assert layouts["layer/combine_mask"] == (BOTH, (), (), ())
    assert layouts["layer/shared_mlp_in_0"] == (BOTH, (), ())
    assert layouts["layer/expert_wi_0"] == (E, F, ())
    assert layouts["layer/expert_wo_mlp"] == (E, (), F)
    assert layouts["layer/shared_wi_0"] == (BOTH, ())
    assert layouts["layer/router"] == (BOTH, ())
    assert layouts["layer/wq"] == (BOTH, (), ())


def moved(exchange: str, **changes: Any) -> list[tuple[str, str, float]]:
    """What a layer's forward pass moves over the experts' axis, in elements of a device."""
    plan = plan_of(MESH, expert_exchange=exchange, **changes)
    partitioned, sizes = partitioned_of(moe(), plan), sizes_of(moe(), plan)
    return [
        (comm.kind.value, comm.tensor, sizes.elements(comm.payload))
        for comm, n in comms(partitioned)
        if n == 3 and comm.phase is Phase.FORWARD and comm.purpose is Purpose.ACTIVATION
    ]


TOKENS = 32 * 16 // 8
GROUP = 4 * TOKENS


@pytest.mark.parametrize(
    ("exchange", "changes", "expected"),
    [
        ("all-to-all", MASK, [
            ("all-to-all", "layer/dispatched", 2 * TOKENS * 64),
            ("all-to-all", "layer/expert_out", 2 * TOKENS * 64),
        ]),
        ("all-to-all", {}, [
            ("all-to-all", "layer/dispatched", 2 * TOKENS * 64),
            ("all-to-all", "layer/expert_out", 2 * TOKENS * 64),
        ]),
        ("gather", MASK, [
            ("all-gather", "layer/gates", GROUP * 2),
            ("all-gather", "layer/mlp_norm", GROUP * 64),
            ("reduce-scatter", "layer/mlp_out", GROUP * 64),
        ]),
        ("gather", {}, [
            ("all-to-all", "layer/expert_gates", TOKENS * 8),
            ("all-gather", "layer/mlp_norm", GROUP * 64),
            ("reduce-scatter", "layer/mlp_out", GROUP * 64),
        ]),
        ("ring", MASK, [
            ("all-to-all", "layer/dispatch_mask", TOKENS * 8 * 4),
            ("all-gather", "layer/mlp_norm", GROUP * 64),
            ("all-to-all", "layer/expert_out", 2 * TOKENS * 64),
        ]),
        ("ring", {}, [
            ("all-to-all", "layer/expert_gates", TOKENS * 8),
            ("all-gather", "layer/mlp_norm", GROUP * 64),
            ("all-to-all", "layer/expert_out", 2 * TOKENS * 64),
        ]),
    ],
)  # fmt: skip
def test_exchanges_follow_from_how_gates_and_masks_lie(
    exchange: str, changes: dict[str, Any], expected: list[tuple[str, str, float]]
) -> None:
    assert moved(exchange, **changes) == expected


@pytest.mark.parametrize("changes", [{}, MASK])
@pytest.mark.parametrize("exchange", ["all-to-all", "gather", "ring"])
@pytest.mark.parametrize("other", ["tensor", "context"])
def test_all_that_experts_move_is_asked_for(
    other: str, exchange: str, changes: dict[str, Any]
) -> None:
    """Beside another axis too, and a step that is annotated has the same."""
    plan = plan_of({"expert": 4, "fsdp": 2, other: 2}, expert_exchange=exchange, **changes)
    found = comms(partitioned_of(moe(), plan))
    assert not [comm.name for comm, _ in found if "expert" in comm.axes and not comm.asked]
    annotated = replace(plan, annotate={"layer/mlp_norm": (BOTH, None, None)})
    if other == "tensor":
        again = comms(partitioned_of(moe(), annotated))
        assert Counter(c.kind for c, _ in again) == Counter(c.kind for c, _ in found)


def test_experts_over_tensor_add_up_their_parts() -> None:
    plan = plan_of({"expert": 2, "tensor": 4})
    partitioned, sizes = partitioned_of(moe(), plan), sizes_of(moe(), plan)
    (summed,) = [
        comm for comm, n in comms(partitioned)
        if n == 3 and comm.phase is Phase.FORWARD and "tensor" in comm.axes
        and comm.tensor == "layer/expert_out"
    ]  # fmt: skip
    assert payload(summed, sizes) == 8 // 2 * 32 * 4 * 64 * 2


def work_of(model: Transformer, name: str, **changes: Any) -> MatmulWork:
    program = any_program_of(model, plan_of(MESH, **changes), Slice("v5p", "2x2x2"))
    for op, _ in flat(program.body):
        if isinstance(op, Compute) and op.name.removesuffix("/chunk") == name:
            assert isinstance(op.work, MatmulWork)
            return op.work
    raise AssertionError(name)


def test_a_sort_is_followed_by_grouped_kernels() -> None:
    """Two experts a device with 64 rows each: 32 sequences over 2, four slots in each of 16."""
    forward = work_of(moe(), "layer/expert_wi_0")
    assert (forward.batch, forward.m, forward.k, forward.n, forward.ragged) == (2, 64, 64, 128, "m")
    weights = work_of(moe(), "bwd/layer/expert_wi_0/dw")
    assert (weights.batch, weights.k, weights.ragged) == (2, 64, "k")
    assert work_of(moe(), "layer/expert_wi_0", **MASK).ragged == ""
    assert work_of(moe(), "layer/wq").ragged == ""


def test_experts_are_quantised_and_routers_are_not() -> None:
    program = any_program_of(
        moe(), plan_of(MESH, matmul_dtype="int8"), Slice("v5p", "2x2x2")
    )  # fmt: skip
    dtypes = {op.name.removesuffix("/chunk"): op.work.dtype for op, _ in flat(program.body)
              if isinstance(op, Compute) and isinstance(op.work, MatmulWork)}  # fmt: skip
    assert dtypes["layer/expert_wi_0"] == dtypes["bwd/layer/expert_wo_mlp/dw"] == "int8"
    assert dtypes["layer/router"] == dtypes["bwd/layer/router/dw"] == "bf16"


def test_minimal_saves_what_experts_make() -> None:
    """Then no expert's matmul runs again, nor the exchange before it."""
    partitioned = partitioned_of(moe(), plan_of(MESH, remat="minimal"))
    again = [comm.tensor for comm, _ in comms(partitioned) if comm.phase is Phase.RECOMPUTE]
    assert "layer/expert_wi_0" not in again
    full = partitioned_of(moe(), plan_of(MESH, remat="full"))
    assert "layer/expert_wi_0" in [c.tensor for c, _ in comms(full) if c.phase is Phase.RECOMPUTE]


@pytest.mark.parametrize("changes", [
    {"microbatches": 2}, {"offload": ("layer_in",)}, {"save": ("expert_out",)},
    {"offload_optimizer": True}, {"vocab_tiles": 2}, {"gather_dtype": "f32"},
    {"matmul_dtype": "int8", "gather_dtype": "int8"}, {"remat": "dots"}, {"remat": "none"},
    {"optimizer": "adafactor"}, {"collectives": "best"}, {"lowering": "ideal"},
])  # fmt: skip
@pytest.mark.parametrize("way", [{}, MASK])
def test_whatever_else_a_plan_says_runs_with_experts(
    way: dict[str, Any], changes: dict[str, Any]
) -> None:
    plan = plan_of(MESH, **(way | changes))
    result = simulate(moe(), plan, Slice("v5p", "2x2x2"))
    assert result.step_time_s > 0
    assert not [one for one in result.implicit_reshardings if "expert" in str(one)]


@pytest.mark.parametrize(
    ("mesh", "changes", "sentence"),
    [
        ({"expert": 16}, {}, "the 8 experts of the model do not divide over expert=16; write 8"),
        ({"expert": 3}, {"global_batch": 33}, "the 8 experts of the model do not divide over "
         "expert=3; write 2 or 4"),
        ({"fsdp": 8, "expert": 8}, {}, "plan.global_batch is 32, which is smaller than the 64 "
         "shards of its axes (fsdp=8 x expert=8)"),
        (MESH, {"capacity_factor": -1}, "plan.capacity_factor is -1; write a number above 0, such "
         "as 1.25, or 0 to drop no token"),
        (MESH, {"dispatch": "sorted"}, "plan.dispatch is 'sorted': did you mean 'sort'?"),
        (MESH, {"expert_exchange": "rings"}, "plan.expert_exchange is 'rings': did you mean "
         "'ring'?"),
        (MESH, {"dispatch": "one_hot"}, "a mask has a fixed number of slots; write a "
         "capacity_factor, such as 1.25, or dispatch = 'sort'"),
        (MESH, {"expert_skew": 2}, "plan.expert_skew is 2; write a number from 0, even, to 1"),
        (MESH, {"expert_skew": 0.5, "capacity_factor": 1.0}, "a capacity gives all experts as many "
         "slots; leave one of them out"),
        (MESH, {"seed": 0.5}, "plan.seed is 0.5; it must be a whole number"),
        (MESH, {"expert_tiles": 512}, "plan.expert_tiles is 512; write three multiples of 8: rows, "
         "elements of embed and elements of the experts' width, such as [512, 1024, 1024], or [] "
         "for those that Tokamax chooses"),
        (MESH, {"expert_tiles": (512, 1024)}, "plan.expert_tiles is (512, 1024); write three"),
        (MESH, {"expert_tiles": (512, 1024, 100)}, "plan.expert_tiles is (512, 1024, 100)"),
        (MESH, {"expert_tiles": (512, 0, 1024)}, "plan.expert_tiles is (512, 0, 1024)"),
    ],
)  # fmt: skip
def test_a_plan_of_experts_that_cannot_be(
    mesh: dict[str, int], changes: dict[str, Any], sentence: str
) -> None:
    def made() -> None:
        plan = plan_of(mesh, **changes)
        plan.check_together()
        partitioned_of(moe(), plan)

    with pytest.raises(PlanError) as caught:
        made()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("mesh", "changes", "sentence"),
    [
        (MESH, {}, "plan.mesh.expert is 4, but the model has no experts; call the axis fsdp or "
         "data, or give the model experts"),
        ({"fsdp": 8}, {"capacity_factor": 1.25}, "plan.capacity_factor is 1.25, but the model has "
         "no experts; leave it out"),
        ({"fsdp": 8}, {"expert_skew": 0.1}, "plan.expert_skew is 0.1, but the model has no"),
    ],
)  # fmt: skip
def test_a_dense_model_has_no_use_for_what_experts_need(
    mesh: dict[str, int], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError) as caught:
        partitioned_of(small(), plan_of(mesh, **changes))
    assert sentence in str(caught.value)


def test_the_draw_is_one_and_its_mean_is_even() -> None:
    drawn = loads(64, 1.0, 3)
    assert drawn == loads(64, 1.0, 3) != loads(64, 1.0, 4)
    assert sum(drawn) == pytest.approx(64)
    half = loads(64, 0.5, 3)
    assert [2 * (one - 1) for one in half] == pytest.approx([one - 1 for one in drawn])
    assert loads(64, 0.0, 3) == ()


def test_the_busiest_device_is_the_one_with_the_most_tokens() -> None:
    assert busiest_load((1.0, 2.0, 0.5, 0.5), 1) == 1
    assert busiest_load((1.0, 2.0, 0.5, 0.5), 2) == 1.5
    assert busiest_load((1.0, 2.0, 0.5, 0.5), 4) == 2


def test_the_spread_of_a_draw_is_about_its_skew() -> None:
    """Of a point of the simplex, the variance over the mean squared is (n - 1) / (n + 1)."""
    drawn = [one for seed in range(200) for one in loads(64, 1.0, seed)]
    assert sum((one - 1) ** 2 for one in drawn) / len(drawn) == pytest.approx(63 / 65, rel=0.05)


def test_skew_stretches_slots_and_not_what_is_counted() -> None:
    plan = plan_of({"expert": 8}, expert_skew=1.0, seed=5)
    worst = max(loads(8, 1.0, 5))
    even, skewed = (
        any_program_of(moe(), one, Slice("v5p", "2x2x2"))
        for one in (plan.replace(expert_skew=0.0), plan)
    )
    for (op, _), (other, _) in zip(flat(even.body), flat(skewed.body), strict=True):
        if isinstance(op, Compute) and op.name == "layer/expert_wi_0":
            assert isinstance(op.work, MatmulWork)
            assert isinstance(other, Compute)
            assert isinstance(other.work, MatmulWork)
            assert other.work.m == pytest.approx(op.work.m * worst)
            assert other.flops == op.flops
        if isinstance(op, Compute) and op.name in ("layer/dispatch", "layer/wq"):
            assert other == op, "each device sorts its own tokens"
