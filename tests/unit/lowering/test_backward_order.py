"""Products for gradients of weights stand behind the other operations of their layer."""

from types import SimpleNamespace
from typing import Any

import pytest
from plans import any_program_of, calcs, loop, partitioned_of, plan_of, small

from tpusim.hardware import Slice
from tpusim.lowering.passes.backward_order import weight_gradients_last
from tpusim.models import Conformer
from tpusim.plan import Plan
from tpusim.program import Compute, Loop
from tpusim.simulation import simulate

MESHES = [{"data": 16}, {"data": 4, "tensor": 4}, {"fsdp": 16}]
WEIGHTS = ("wo_mlp", "wi_1", "wi_0", "wo", "wv", "wk", "wq")
"""In the order of differentiation."""


def order(plan: Plan, scan: str = "layers/d", **changes: Any) -> list[str]:
    """Names of what computes in a loop's body: rings by the name of their matmul."""
    body = loop(any_program_of(small(**changes), plan, Slice("v6e", "4x4")).body, scan).body
    named = (op.name for op in body if isinstance(op, Compute | Loop))
    return [name.removesuffix("/ring") for name in named]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("remat", ["full", "none"])
@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_weights_wait_for_the_backward_pass_of_attention(
    mesh: dict[str, int], remat: str, attention: str
) -> None:
    """Of few tokens: only copies out of stacks come between them, and to those of gradients."""
    names = order(plan_of(mesh, remat=remat, seq_len=4), attention=attention)
    products = [f"bwd/layer/{weight}/dw" for weight in WEIGHTS]
    behind = names[names.index(products[0]) :]
    assert [name for name in behind if not name.startswith(("load/", "stack/"))] == products


def test_each_layer_of_a_pattern_ends_with_its_own() -> None:
    names = order(plan_of({"fsdp": 16}), layers=6, window=4, global_every=3)
    layers = [name.split("/")[2] for name in names if name.endswith("/dw")]
    assert layers == [layer for layer in "210" for _ in range(7)]
    for layer, following in ("21", "10"):
        last = max(i for i, n in enumerate(names) if n.startswith(f"bwd/layer/{layer}/"))
        assert names[last].endswith("/dw")
        assert last < min(i for i, n in enumerate(names) if n.startswith(f"bwd/layer/{following}/"))


@pytest.mark.parametrize(
    "plan",
    [
        plan_of({"fsdp": 4, "tensor": 4}, rules={"act_embed": "tensor"}),
        plan_of({"fsdp": 16}, lowering="ideal"),
    ],
    ids=["gathered activations", "ideal"],
)
def test_elsewhere_they_follow_the_gradient_beside_them(plan: Plan) -> None:
    names = order(plan)
    assert names.index("bwd/layer/wo_mlp/dw") < names.index("bwd/layer/attention/d")


@pytest.mark.parametrize(("sequences", "waits"), [(48, True), (64, False)])
def test_they_run_at_once_where_they_free_as_much_as_they_take(sequences: int, waits: bool) -> None:
    """Hidden layers of [3 or 4 sequences x 16, 256], and gradients of [64, 256]; no rings."""
    plan = plan_of({"data": 16}, global_batch=sequences)
    names = order(plan)
    last = names.index("bwd/layer/attention/d") < names.index("bwd/layer/wi_0/dw")
    assert last == waits


@pytest.mark.parametrize(
    ("remat", "attention", "waits"),
    [
        ("minimal", "dot", True),
        ("full", "dot", False),
        ("minimal", "flash", True),
        ("dots", "flash", True),
        ("full", "flash", False),
    ],
)
def test_beside_saved_products_they_wait_for_attention(
    remat: str, attention: str, waits: bool
) -> None:
    """As in 40 of 43 programs with a kernel; with a full checkpoint in 3 of 18 without one."""
    names = order(plan_of({"data": 16}, global_batch=64, remat=remat), attention=attention)
    assert (names.index("bwd/layer/wi_0/dw") > names.index("bwd/layer/wo/dx")) == waits


@pytest.mark.parametrize(
    ("keys", "late"),
    [
        ({"remat": "minimal"}, True),
        ({"remat": "dots"}, True),
        ({"remat": {"policy": "full", "save": ["mid"]}}, True),
        ({"remat": "full"}, False),
        ({"remat": {"policy": "full", "save": ["mlp_in_0"]}}, False),
        ({"remat": "minimal", "without_passes": ["recompute-late"]}, False),
    ],
)
def test_attention_is_computed_again_after_the_mlp_if_that_needs_nothing_of_it(
    keys: dict[str, Any], late: bool
) -> None:
    names = order(plan_of({"fsdp": 16}, **keys))
    assert (names.index("bwd/layer/attention") > names.index("bwd/layer/wi_0/dx")) == late
    assert names.index("bwd/layer/attention") < names.index("bwd/layer/attention/d")


@pytest.mark.parametrize(
    ("pod", "mesh", "late"),
    [("v5e", {"data": 4, "fsdp": 4}, False), ("v5e", {"fsdp": 16}, True),
     ("v6e", {"data": 4, "fsdp": 4}, True)],
)  # fmt: skip
def test_attention_is_not_computed_late_where_matmuls_carry_gathers(
    pod: str, mesh: dict[str, int], late: bool
) -> None:
    """On v5e alone, and where no weight is in a ring."""
    plan = plan_of(mesh, remat="minimal", seq_len=1024)
    model = small(embed=1024, mlp=4096, head_dim=128)
    body = any_program_of(model, plan, Slice(pod, "4x4")).body
    names = [op.name.removesuffix("/ring") for op in loop(body, "layers/d").body]
    assert (names.index("bwd/layer/attention") > names.index("bwd/layer/wi_0/dx")) == late


def test_rings_wait_whatever_they_free() -> None:
    names = order(plan_of({"fsdp": 16}, global_batch=2048, seq_len=64))
    assert names.index("bwd/layer/attention/d") < names.index("bwd/layer/wi_0/dw")


def test_without_attention_nothing_is_held_for_them() -> None:
    """A scan of MLPs was compiled to hold two hidden layers (see test_gelu_scan_memory.py)."""
    partitioned = partitioned_of(small(), plan_of({"data": 16}))
    nodes = [node for node, _ in calcs(partitioned) if "attention" not in node.name]
    weights = {weight.name for weight in partitioned.weights}
    body: Any = SimpleNamespace(
        weights=weights, ask=lambda *_: True, collectives=(), remat=SimpleNamespace(policy="full")
    )
    assert weight_gradients_last(nodes, body) == nodes


def head_waits(plan: Plan, pod: Slice | None = None, **changes: Any) -> bool:
    """True if the head's gradient is multiplied after the layers' backward pass."""
    program = any_program_of(small(**changes), plan, pod or Slice("v6e", "4x4"))
    names = [op.name for op in program.body]
    product = next(i for i, n in enumerate(names) if n in ("logits/dw", "logits/dw/ring"))
    return product > names.index("layers/d")


@pytest.mark.parametrize(("sequences", "waits"), [(48, True), (64, False), (128, False)])
def test_the_head_waits_while_the_logits_are_smaller_than_its_gradient(
    sequences: int, waits: bool
) -> None:
    """On each device 16 tokens a sequence beside 64 rows of the head, as wide as each other."""
    assert head_waits(plan_of({"data": 16}, global_batch=sequences)) is waits


@pytest.mark.parametrize("pod", ["v5p", "v6e"])
@pytest.mark.parametrize(
    ("mesh", "vocab", "tied", "waits"),
    [
        ({"data": 4, "fsdp": 4}, 8192, False, True),
        ({"data": 4, "fsdp": 4}, 512, False, False),
        ({"data": 4, "fsdp": 4}, 8192, True, False),
        ({"data": 16}, 8192, False, False),
    ],
    ids=["smaller layers", "larger layers", "tied", "not gathered"],
)
def test_the_head_waits_while_layers_hold_less_than_the_gathered_head(
    pod: str, mesh: dict[str, int], vocab: int, tied: bool, waits: bool
) -> None:
    """After the gradient of the embedding too: as in 6 of 7 programs, and in none of 20."""
    plan, chips = plan_of(mesh, global_batch=128), {"v5p": "2x2x4", "v6e": "4x4"}
    model = small(vocab=vocab, tied_embeddings=tied)
    names = [op.name for op in any_program_of(model, plan, Slice(pod, chips[pod])).body]
    assert (names.index("logits/dw") > names.index("layers/d")) is waits
    assert (names.index("logits/dw") > names.index("embed/dw")) is waits


@pytest.mark.parametrize("mesh", [{"data": 16}, {"fsdp": 16}])
def test_the_head_waits_where_its_gradient_is_reduced_beside_the_core(mesh: dict[str, int]) -> None:
    assert head_waits(plan_of(mesh, global_batch=256), Slice("7x", "2x2x2"))


@pytest.mark.parametrize(
    ("mesh", "sequences", "changes", "waits"),
    [
        ({"fsdp": 16}, 256, {}, False),
        ({"fsdp": 4, "context": 4}, 4, {}, True),
        ({"fsdp": 4, "context": 4}, 4, {"embed": 8192}, True),
        ({"fsdp": 4, "context": 4}, 4, {"embed": 8256}, False),
        ({"fsdp": 4, "context": 4}, 8, {}, False),
        ({"fsdp": 8, "tensor": 2}, 256, {}, False),
        ({"fsdp": 8, "expert": 2}, 256, {"experts": 4, "experts_per_token": 1}, True),
        ({"fsdp": 16}, 256, {"experts": 4, "experts_per_token": 1}, False),
    ],
)
def test_a_ring_of_the_head_waits_over_parts_of_a_sequence_and_experts(
    mesh: dict[str, int], sequences: int, changes: dict[str, int], waits: bool
) -> None:
    """As in 135 of 152 programs for v4 to v6e, 12 of 14, 8 of 8, 10 of 13 and 18 of 22.

    A device has 16,384 tokens, two for each column of 8192.
    """
    plan = plan_of(mesh, global_batch=sequences, seq_len=2**18 // sequences)
    names = [op.name for op in any_program_of(small(**changes), plan, Slice("v6e", "4x4")).body]
    assert "logits/dw/ring" in names
    assert (names.index("logits/dw/ring") > names.index("layers/d")) is waits


@pytest.mark.parametrize(
    ("chip", "topology", "waits"), [("v4", "2x2x4", False), ("v5e", "4x4", True)]
)
def test_on_v4_a_ring_of_the_head_over_experts_runs_at_once(
    chip: str, topology: str, waits: bool
) -> None:
    """None of 6 programs waits; on v5e, v5p and v6e 18 of 22."""
    plan = plan_of({"fsdp": 8, "expert": 2}, global_batch=256, seq_len=1024)
    model = small(experts=4, experts_per_token=1)
    names = [op.name for op in any_program_of(model, plan, Slice(chip, topology)).body]
    assert (names.index("logits/dw/ring") > names.index("layers/d")) is waits


@pytest.mark.parametrize(("mesh", "joins"), [({"fsdp": 16}, True), ({"data": 16}, False)])
def test_a_ring_of_the_head_waits_for_that_of_a_projection_before_the_layers(
    mesh: dict[str, int], joins: bool
) -> None:
    model = Conformer(name="speech", layers=2, embed=1024, heads=8, frames=512, codes=8192)
    plan = Plan(mesh=mesh, global_batch=1024)
    names = [op.name for op in simulate(model, plan, Slice("v5p", "2x2x4")).program.body]
    ring = "logits/dw/ring" if joins else "logits/dw"
    assert (names.index(ring) > names.index("layers/d")) is joins
    assert ("frame/dw/ring" in names) is joins


def test_a_sharded_head_that_is_all_reduced_does_not_wait() -> None:
    """Before the layers in 6 of 7 programs with data 4 x tensor 4 on v4, v5p and v6e."""
    assert not head_waits(plan_of({"data": 4, "tensor": 4}, global_batch=256))


@pytest.mark.parametrize(
    ("mesh", "keys", "waits"),
    [
        ({"data": 16}, {"style": "maxtext"}, True),
        ({"data": 4, "fsdp": 4}, {"style": "maxtext"}, True),
        ({"fsdp": 16}, {"style": "maxtext", "collective_matmul": False}, False),
        ({"data": 16}, {"style": "maxtext", "offload": ["q"]}, False),
        ({"data": 16}, {}, False),
        ({"data": 4, "fsdp": 4}, {}, False),
    ],
)
def test_the_head_of_maxtext_waits_where_it_is_all_reduced(
    mesh: dict[str, int], keys: dict[str, Any], waits: bool
) -> None:
    """In 5 of 5 of its programs; over `fsdp` alone, where it is scattered, not; nor a tied one."""
    size: dict[str, Any] = {"global_batch": 256, "seq_len": 1024, "remat": "full"}
    plan = plan_of(mesh, **size, **keys)
    assert head_waits(plan.as_compiled) is waits
    assert not head_waits(plan.replace(grad_dtype="bf16"))
    assert not head_waits(plan.as_compiled, tied_embeddings=True)


@pytest.mark.parametrize(
    ("mesh", "offload", "style", "waits"),
    [
        ({"data": 16}, ["layer_in"], "plain", True),
        ({"data": 16}, ["layer_in", "q"], "plain", True),
        ({"data": 16}, ["layer_in", "q"], "maxtext", False),
        ({"data": 16}, [], "plain", False),
        ({"data": 4, "fsdp": 4}, ["layer_in", "q"], "plain", False),
        ({"fsdp": 16}, ["layer_in"], "plain", True),
        ({"fsdp": 16}, [], "plain", False),
    ],
)
def test_the_head_waits_beside_copies_to_the_host(
    mesh: dict[str, int], offload: list[str], style: str, waits: bool
) -> None:
    """Where it is a ring or all-reduced whole: 13 of 13 programs, and none of 6 others."""
    size: dict[str, Any] = {"global_batch": 256, "seq_len": 1024, "remat": "full"}
    plan = plan_of(mesh, **size, offload=offload, style=style)
    assert head_waits(plan) is waits


@pytest.mark.parametrize(
    ("layers", "without", "late"),
    [(2, [], True), (3, [], False), (2, ["rings-after-layers"], False)],
)
def test_rings_of_two_layers_wait_for_both_where_tensors_are_offloaded(
    layers: int, without: list[str], late: bool
) -> None:
    """As the last layer's backward pass stands after the loop, of two layers none is left."""
    size: dict[str, Any] = {"global_batch": 256, "seq_len": 1024, "remat": "full"}
    plan = plan_of({"fsdp": 16}, **size, offload=["layer_in"], without_passes=without)
    ops = any_program_of(small(layers=layers), plan, Slice("v6e", "4x4")).body
    assert ("layers/d/gradients" in [op.name for op in ops]) is late
    products = [op.name for op in ops if op.name.startswith("bwd/") and "(last)" in op.name]
    rings = [name for name in products if "/dw/ring" in name]
    behind = products[products.index(rings[0]) :]
    assert len(rings) == len(WEIGHTS)
    assert all("/dw/" in name for name in behind if not name.startswith("all-reduce"))


@pytest.mark.parametrize(
    ("chip", "without", "first"),
    [("v5e", [], True), ("v5e", ["head-gradient-first"], False), ("v6e", [], False)],
)
def test_the_gradient_of_the_head_is_multiplied_first_on_v5e(
    chip: str, without: list[str], first: bool
) -> None:
    """So the gathered head is held beside its whole gradient."""
    plan = plan_of({"data": 4, "fsdp": 4}, seq_len=1024, without_passes=without)
    program = any_program_of(small(vocab=512), plan, Slice(chip, "4x4"))
    names = [op.name for op in program.body if isinstance(op, Compute)]
    assert (names.index("logits/dw") < names.index("logits/dx")) is first


@pytest.mark.parametrize(
    ("chip", "mesh", "waits"),
    [
        ("7x", {"fsdp": 2, "tensor": 8}, False),
        ("7x", {"fsdp": 16}, True),
        ("7x", {"fsdp": 8, "tensor": 2}, True),
        ("7x", {"data": 4, "fsdp": 2, "tensor": 2}, True),
    ],
)
def test_the_gradient_of_the_head_hides_the_sum_of_that_of_its_input(
    chip: str, mesh: dict[str, int], waits: bool
) -> None:
    """The SparseCore sums it over `tensor`: 4 of 4 programs over 2 and 4 devices."""
    plan = plan_of(mesh, global_batch=64, seq_len=1024)
    names = [op.name for op in any_program_of(small(), plan, Slice(chip, "2x2x2")).body]
    head = next(i for i, name in enumerate(names) if name.startswith("logits/dw"))
    assert (head > names.index("layers/d")) is waits


@pytest.mark.parametrize(
    ("chip", "mesh", "remat", "waits"),
    [
        ("v6e", {"fsdp": 8, "tensor": 2}, "minimal", True),
        ("v6e", {"fsdp": 8, "tensor": 2}, "dots", False),
        ("v6e", {"fsdp": 16}, "minimal", False),
        ("v5e", {"fsdp": 4, "tensor": 4}, "full", True),
        ("v6e", {"fsdp": 4, "tensor": 4}, "full", False),
    ],
)
def test_a_ring_of_the_head_waits_beside_a_sum_over_tensor(
    chip: str, mesh: dict[str, int], remat: str, waits: bool
) -> None:
    """With `minimal` remat (5 of 5 programs), and unrolled on v5e (5 of 5)."""
    plan = plan_of(mesh, global_batch=64, seq_len=1024, remat=remat)
    names = [op.name for op in any_program_of(small(), plan, Slice(chip, "4x4")).body]
    assert (names.index("logits/dw/ring") > names.index("layers/d")) is waits


@pytest.mark.parametrize(("attention", "ahead"), [("dot", True), ("flash", False)])
def test_rings_come_last_beside_gathered_activations(attention: str, ahead: bool) -> None:
    """Each has a copy of its own, gathered with the first one where no kernel attends."""
    plan = plan_of({"fsdp": 8, "tensor": 2}, seq_len=1024, rules={"act_embed": "tensor"})
    wide = small(embed=1024, mlp=4096, head_dim=128, attention=attention)
    body = loop(any_program_of(wide, plan, Slice("v6e", "4x4")).body, "layers/d").body
    names = [op.name for op in body]
    own = names.index("bwd/layer/wq/dw/ring")
    assert names.index("bwd/layer/wi_0/dw/ring") > names.index("bwd/layer/wo/dx")
    again = names.index("all-gather/bwd/layer/attn_norm@tensor again again again")
    assert again < own
    assert (again < names.index("bwd/layer/wo")) is ahead
    after = names.index("bwd/layer/wk/dw/ring")
    assert (again > after) is not ahead


@pytest.mark.parametrize(
    ("remat", "after"), [("minimal", True), ("dots", True), ("full", False), ("none", False)]
)
@pytest.mark.parametrize("rule", ["act_embed", "act_residual_seq"])
def test_the_input_of_the_mlp_is_gathered_for_its_weights_gradients(
    remat: str, after: bool, rule: str
) -> None:
    """Of saved products nothing else reads it: 6 of 6 programs on v4 and v5p."""
    plan = plan_of({"data": 4, "tensor": 4}, seq_len=1024, remat=remat, rules={rule: "tensor"})
    body = loop(any_program_of(small(), plan, Slice("v4", "2x2x4")).body, "layers/d").body
    names = [op.name for op in body]
    gathers = [i for i, name in enumerate(names) if name.endswith("mlp_norm@tensor")]
    assert any(names.index("bwd/layer/attention/d") < place for place in gathers) is after


@pytest.mark.parametrize(
    ("mesh", "style", "waits"),
    [
        ({"tensor": 16}, "plain", False),
        ({"fsdp": 2, "tensor": 8}, "plain", False),
        ({"fsdp": 4, "tensor": 4}, "maxtext", True),
        ({"fsdp": 2, "tensor": 8}, "maxtext", False),
    ],
)
def test_a_head_whose_input_is_gathered_waits_where_it_may_be_a_ring(
    mesh: dict[str, int], style: str, waits: bool
) -> None:
    """Over four devices and more in 4 of 4 programs with MaxText's flags; over fewer none of 4."""
    rules = {"act_embed": "tensor"}
    plan = plan_of(mesh, global_batch=256, seq_len=1024, rules=rules, style=style)
    assert head_waits(plan) is waits


@pytest.mark.parametrize(
    ("mesh", "remat", "rules", "waits"),
    [
        ({"tensor": 16}, "full", {"act_embed": "tensor"}, True),
        ({"data": 2, "fsdp": 2, "tensor": 4}, "full", {}, True),
        ({"data": 2, "fsdp": 2, "tensor": 4}, "dots", {}, False),
        ({"data": 4, "fsdp": 4}, "full", {}, False),
        ({"tensor": 16}, "dots", {"act_embed": "tensor"}, True),
    ],
)
def test_on_v5e_the_head_waits_beside_the_gathered_gradient_of_what_enters_the_layers(
    mesh: dict[str, int], remat: str, rules: dict[str, str], waits: bool
) -> None:
    """Beside columns in 5 of 5 programs; beside tokens in none of 3 with `dots`."""
    plan = plan_of(mesh, global_batch=32, seq_len=1024, remat=remat, rules=rules)
    assert head_waits(plan, Slice("v5e", "4x4"), vocab=32768) is waits
