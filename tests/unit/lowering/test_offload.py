"""Saved tensors on the host: what leaves when, what comes back when, and what is refused."""

from typing import Any

import pytest
from plans import flat, loop, plan_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.program import Compute, Dep, Op, Program, Transfer, TransferKind
from tpusim.results import Result
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
LAYERS = 3
NORMS = {"act_residual_seq": "tensor"}
RESIDUAL = 64 / 16 * 128 * 64 * 2
"""Bytes of a layer's input on a device: 64 sequences over 16, 128 tokens, 64 wide, bf16."""


def result(offload: tuple[str, ...] = (), layers: int = LAYERS, **changes: Any) -> Result:
    given = {"seq_len": 128, "global_batch": 64, "offload": offload, "style": "maxtext"}
    return simulate(small(layers=layers), plan_of({"fsdp": 16}, **(given | changes)), POD)


def program(*args: Any, **changes: Any) -> Program:
    return result(*args, **changes).program


def transfers(body: tuple[Op, ...]) -> dict[str, Transfer]:
    return {op.name: op for op, _ in flat(body) if isinstance(op, Transfer)}


def place(body: tuple[Op, ...], name: str) -> int:
    return [op.name for op in body].index(name)


def waits_of(op: Op) -> tuple[Dep, ...]:
    return getattr(op, "deps", ())


def test_a_tensor_leaves_after_its_last_reader_of_the_forward_pass() -> None:
    """Of a kernel's keys with heads of 32, which fill a quarter of the lanes, on the host too."""
    body = loop(program(("k",)).body, "layers").body
    last = max(place(body, name) for name in ("layer/k_rotary", "layer/wk"))
    gone = body[last + 1]
    assert isinstance(gone, Transfer)
    assert (gone.kind, gone.scope) == (TransferKind.TO_HOST, "layer/k")
    assert gone.bytes == 4 * 4 * RESIDUAL
    assert gone.frees == ("layer/k",)
    assert not [op.name for op in body if not isinstance(op, Transfer) and "layer/k" in op.frees]


def test_a_layers_input_is_copied_before_the_next_layer_writes_over_it() -> None:
    body = loop(program(("layer_in",)).body, "layers").body
    (gone,) = transfers(body).values()
    assert gone.frees == ("layer/layer_in (to host)",)
    taken = [op for op in body if "layer/layer_in (to host)" in {a.tensor for a in op.allocs}]
    assert len(taken) == 1
    assert place(body, taken[0].name) < place(body, gone.name)


def test_a_layer_waits_for_the_copies_of_the_layer_before_the_last() -> None:
    body = loop(program(("layer_in", "q")).body, "layers").body
    first = next(op for op in body if isinstance(op, Compute))
    assert {Dep("to-host/layer/q", 2), Dep("to-host/layer/layer_in", 2)} <= set(first.deps)


def test_the_backward_pass_fetches_a_layer_ahead() -> None:
    whole = program(("layer_in",)).body
    backward = loop(whole, "layers/d")
    assert backward.trips == LAYERS - 1
    first, ahead = transfers(whole)["from-host/layer/layer_in (first)"], backward.body[0]
    assert isinstance(ahead, Transfer)
    assert first.allocs == ahead.allocs
    assert first.deps == (Dep("to-host/layer/layer_in"),)
    readers = [op for op in backward.body[1:] if Dep(ahead.name, 1) in waits_of(op)]
    assert readers[0].name == "load/bwd/layer/layer_in"
    assert all(Dep(first.name) in waits_of(op) for op in readers)
    assert sum("bwd/layer/layer_in" in getattr(op, "frees", ()) for op in backward.body) == 1


def test_one_queue_serves_the_host() -> None:
    """Each copy waits for the one before it, of this layer or of the layer before."""
    whole = program(("q", "k")).body
    forward, backward = (loop(whole, name).body for name in ("layers", "layers/d"))
    k, q = (transfers(forward)[f"to-host/layer/{name}"] for name in "kq")
    assert q.deps[-1] == Dep(k.name, 0) or k.deps[-1] == Dep(q.name, 0)
    assert Dep(q.name, 1) in k.deps or Dep(k.name, 1) in q.deps
    first, second = (op for op in backward if isinstance(op, Transfer))
    assert first.deps == (Dep(second.name, 1), Dep(f"{second.name} (first)"))
    assert second.deps == (Dep(first.name),)


def test_the_last_layer_fetches_nothing_and_is_the_same_work() -> None:
    """Only names differ: an operation of each trip, and one behind the loop."""
    whole = program(("layer_in",)).body
    within = [op for op in loop(whole, "layers/d").body if not isinstance(op, Transfer)]
    behind = [op for op in whole if op.name.endswith(" (last)")]
    assert [op.name + " (last)" for op in within] == [op.name for op in behind]
    assert [getattr(op, "work", None) for op in within] == [
        getattr(op, "work", None) for op in behind
    ]


def test_one_layer_needs_no_loop() -> None:
    whole = program(("layer_in",), layers=1).body
    assert "layers/d" not in [op.name for op in whole]
    assert [op.kind for op in transfers(whole).values()] == ["input", "to-host", "from-host"]


def test_one_layer_is_not_apart_of_two_microbatches_over_slices() -> None:
    """Its rings are none of the loops over layers of which the first iteration is taken out."""
    mesh = {"tensor": 16, "dcn_data": 2}
    given = {"seq_len": 4096, "global_batch": 8, "microbatches": 2, "offload": ("layer_in",)}
    model = small(layers=1, embed=4096, mlp=16384, heads=32, kv_heads=16, head_dim=128, gated=False)
    pod = Slice("v6e", "4x4", num_slices=2)
    body = simulate(model, plan_of(mesh, rules=NORMS, **given), pod).program.body
    rings = {op.name for op, _ in flat(body) if "/dx/" in op.name}
    assert rings
    assert not [name for name in rings if name.endswith(" (last) (first)")]


def test_what_is_on_the_host_is_stacked_nowhere() -> None:
    kept, gone = result(), result(("layer_in",))
    assert kept.memory_bytes["saved activations"] == LAYERS * RESIDUAL
    assert "saved activations" not in gone.memory_bytes


def test_what_is_on_the_host_is_not_computed_again() -> None:
    saved, gone = result(save=("q", "k")), result(("q", "k"))
    assert saved.flops == gone.flops
    assert saved.flops.recompute < result().flops.recompute


def test_moments_pass_through_two_weights_at_a_time() -> None:
    whole = program(offload_optimizer=True)
    assert {alloc.category for alloc in whole.resident} == {"weights"}
    held = most = 0
    for op in whole.body:
        held += sum(a.category == "optimizer state" for a in getattr(op, "allocs", ()))
        most = max(most, held)
        held -= sum(name.endswith("/moments") for name in getattr(op, "frees", ()))
    assert (held, most) == (0, 2)


def test_an_update_waits_for_its_own_moments() -> None:
    body = program(offload_optimizer=True).body
    updates = [op for op in body if op.name.startswith("update/")]
    for op in updates:
        assert Dep(f"from-host/{op.name.removeprefix('update/')}/moments") in waits_of(op)
    assert len(updates) > 8


def test_sgd_has_no_moments_to_move() -> None:
    plain = program(optimizer="sgd")
    assert program(optimizer="sgd", offload_optimizer=True) == plain


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"offload": ("contxt",)}, "plan.offload lists 'contxt', which is no activation of a "
         "layer: did you mean 'context'?"),
        ({"offload": ("q",), "save": ("q",)}, "'q' is in plan.save and in plan.offload; keep it "
         "in one: save holds it in HBM, offload on the host"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as raised:
        result(**changes)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_more_than_the_hosts_memory_is_a_note_and_no_refusal() -> None:
    """8 chips of v5e share a host."""
    found = result(("layer_in",))
    assert found.host_need_bytes == 8 * LAYERS * RESIDUAL
    assert "offloaded to each host" not in str(found)
    narrow = Slice(POD.chip.replace(host_bytes="1 MB"), "4x4")
    plan = plan_of({"fsdp": 16}, seq_len=128, global_batch=64, offload=("layer_in",))
    over = simulate(small(), plan, narrow)
    assert over.fits
    assert "1.5 MiB are offloaded to each host, which has 977 KiB" in str(over)
