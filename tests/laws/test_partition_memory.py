"""Memory over a step: what is taken is given back, and every element is somewhere."""

from math import prod

import pytest
from extent import examples
from hypothesis import given
from hypothesis import strategies as st
from lowered import buffer_bytes, padding_bytes
from plans import any_program_of, partitioned_of, plan_of, sizes_of, small

from tpusim.graph import POLICIES
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Loop, Op, Program

POD = Slice("v4", "4x4x4")


def run(body: tuple[Op, ...], held: dict[str, float]) -> float:
    """Run a body, loops twice; return the peak. Fails where a buffer is taken or freed twice."""
    peak = sum(held.values())
    for op in body:
        for alloc in op.allocs:
            assert alloc.tensor not in held, (op.name, alloc.tensor)
            assert 0 <= alloc.padded <= alloc.bytes
            held[alloc.tensor] = alloc.bytes
        peak = max(peak, sum(held.values()))
        if isinstance(op, Loop):
            before = dict(held)
            for _ in range(min(op.trips, 2)):
                peak = max(peak, run(op.body, held))
                assert held == before, op.name
        for name in op.frees:
            assert name in held, (op.name, name)
            del held[name]
    return peak


def allocated(program: Program, category: str) -> float:
    """Bytes that a step takes for a category, outside of the bodies of its loops."""
    return sum(a.bytes for op in program.body for a in op.allocs if a.category == category)


meshes = st.sampled_from(
    [
        {"data": 64},
        {"fsdp": 64},
        {"tensor": 64},
        {"data": 4, "fsdp": 4, "tensor": 4},
        {"fsdp": 16, "tensor": 4},
        {"fsdp": 2, "tensor": 32},
    ]
)
models = st.builds(
    small,
    kv_heads=st.sampled_from([1, 2, 8]),
    vocab=st.sampled_from([512, 509]),
    mlp=st.sampled_from([256, 250]),
    attention=st.sampled_from(["dot", "flash"]),
    gated=st.booleans(),
    parallel=st.booleans(),
    tied_embeddings=st.booleans(),
    rotary=st.booleans(),
)
plans = st.builds(
    plan_of,
    meshes,
    remat=st.sampled_from(POLICIES),
    global_batch=st.just(64),
    lowering=st.sampled_from(["xla", "ideal"]),
    style=st.sampled_from(["plain", "maxtext"]),
    param_dtype=st.sampled_from(["f32", "bf16"]),
    grad_dtype=st.sampled_from(["f32", "bf16"]),
    vocab_tiles=st.sampled_from([1, 4]),
)


@examples(150)
@given(models, plans)
def test_what_a_step_takes_it_gives_back(model: Transformer, plan: Plan) -> None:
    held: dict[str, float] = {}
    peak = run(any_program_of(model, plan, POD).body, held)
    assert held == {}
    assert peak > 0


@examples(60)
@given(models, plans)
def test_the_devices_together_hold_every_element(model: Transformer, plan: Plan) -> None:
    """Local bytes x devices is the tensor, its padding and its copies."""
    partitioned, sizes = partitioned_of(model, plan), sizes_of(model, plan)
    for key, buffer in partitioned.buffers.items():
        local, padding = buffer_bytes(buffer, sizes), padding_bytes(buffer, sizes)
        whole = prod(sizes.dims[dim] for dim in buffer.local.dims) * sizes.itemsize(buffer.dtype)
        copies = plan.devices / sizes.group(tuple(a for axes in buffer.local.layout for a in axes))
        assert (local - padding) * plan.devices == pytest.approx(whole * copies), key
        assert local * plan.devices >= whole


def test_saved_inputs_are_layers_times_the_local_residual_stream() -> None:
    for rules, share in (({}, 4), ({"act_embed": "tensor"}, 16)):
        plan = plan_of({"data": 4, "fsdp": 4, "tensor": 4}, rules=rules, global_batch=64)
        program = any_program_of(small(), plan, POD)
        assert allocated(program, "saved activations") == 3 * 64 * 16 * 64 * 2 / 4 / share


def test_more_is_saved_where_less_is_computed_again() -> None:
    def saved(policy: str) -> float:
        plan = plan_of({"data": 64}, remat=policy, global_batch=64)
        return allocated(any_program_of(small(attention="dot"), plan, POD), "saved activations")

    sizes = [saved(policy) for policy in ("full", "minimal", "dots", "none")]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


def test_gradients_and_cast_weights_are_stacked_in_their_dtypes() -> None:
    matrices = 3 * (4 * 64 * 256 + 3 * 64 * 256)
    scales = 3 * 2 * 64
    tables = 2 * 512 * 64 / 64
    weights = matrices / 64 + scales + tables + 64
    for dtype, item in (("bf16", 2), ("f32", 4)):
        plan = plan_of({"fsdp": 64}, global_batch=64, grad_dtype=dtype)
        program = any_program_of(small(), plan, POD)
        assert allocated(program, "gradients") == item * weights
        assert allocated(program, "cast weights") == 2 * (weights - tables)  # theirs: on the chip


@pytest.mark.parametrize(
    ("optimizer", "embed", "moments"),
    [
        ("adam", 64, 8 * 64 * 256 / 16), ("sgd", 64, 0),
        ("adafactor", 128, 4 * (128 / 4 + 256 / 4)), ("adafactor", 64, 4 * 64 * 256 / 16),
    ],
)  # fmt: skip
def test_the_optimizer_keeps_its_moments_beside_the_weights(
    optimizer: str, embed: int, moments: float
) -> None:
    """Of one matrix [embed, 256] over fsdp=4 x tensor=4, in f32, for 3 layers.

    Adafactor factors those of matrices of 128 x 128 and more.
    """
    plan = plan_of({"data": 4, "fsdp": 4, "tensor": 4}, global_batch=64, optimizer=optimizer)
    held = {a.tensor: a.bytes for a in any_program_of(small(embed=embed), plan, POD).resident}
    assert held["layer/wi_0"] == 3 * 4 * embed * 256 / 16
    assert held.get("layer/wi_0/moments", 0) == 3 * moments


def test_padding_scales_with_the_dtype_of_the_stack() -> None:
    """A hidden layer of 250 over 4 is stored as 252: 2 in 252 bytes hold nothing."""
    for dtype in ("bf16", "f32"):
        plan = plan_of({"data": 16, "tensor": 4}, global_batch=64, grad_dtype=dtype)
        program = any_program_of(small(mlp=250), plan, POD)
        allocs = [a for op in program.body for a in op.allocs]
        (stack,) = (a for a in allocs if a.tensor.startswith("bwd/d(layer/wi_0)"))
        assert stack.padded == pytest.approx(stack.bytes * 2 / 252)
