"""Laws of sequences sharded over context axes, whatever way keys and values cross them."""

from collections.abc import Mapping
from typing import Any

import pytest
from plans import any_program_of, flat, plan_of, small

from tpusim.hardware import Placement, Slice, load_chip, placement_from
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import AttentionWork, Collective, CollectiveKind, Compute, seen_keys
from tpusim.simulation import simulate

POD = Slice("v5p", "4x4x4")
WAYS = ("gather", "ring", "all-to-all")
SEQ = 4096
MIXED: Mapping[str, str] = {"round": "ring", "heads": "all-to-all"}


def model(**changes: Any) -> Transformer:
    return small(**({"heads": 16, "embed": 512, "head_dim": 128} | changes))


def plan(context: int, **changes: Any) -> Plan:
    mesh = {"fsdp": 64 // context, "context": context}
    return plan_of(mesh, **({"seq_len": SEQ, "global_batch": 64} | changes))


def moved(plan: Plan, kind: CollectiveKind, of: Transformer | None = None) -> dict[str, float]:
    """Bytes by name of the activation collectives of one kind over the context, times their runs.

    Names are those of the forward pass; what it computes again is left out.
    """
    found: dict[str, float] = {}
    for op, times in flat(any_program_of(of or model(), plan, POD).body):
        if isinstance(op, Collective) and op.kind is kind and op.axes == ("context",):
            found[op.name] = found.get(op.name, 0.0) + times * float(op.bytes)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("balanced", [True, False])
def test_a_context_of_one_is_none(way: str, balanced: bool) -> None:
    """To the picosecond, and to the byte."""
    changes = {"context_exchange": way, "context_balanced": balanced}
    one = simulate(model(), plan(1, **changes), POD)
    none = simulate(model(), plan_of({"fsdp": 64}, seq_len=SEQ, global_batch=64), POD)
    assert one.timeline.total_ps == none.timeline.total_ps
    assert one.hbm_peak_bytes == none.hbm_peak_bytes


@pytest.mark.parametrize("changes", [{}, {"window": 700}, {"kind": "encoder"}, {"kv_heads": 4}])
def test_flops_are_conserved(changes: dict[str, Any]) -> None:
    """The model needs the same, and nothing is computed twice but for K/V projections' padding."""
    results = [
        simulate(model(**changes), each, POD)
        for each in (
            plan(1), *(plan(context, context_exchange=way) for context in (4, 8) for way in WAYS),
            plan_of({"fsdp": 8, "round": 2, "heads": 4}, seq_len=SEQ, global_batch=64,
                    context_exchange=MIXED),
        )
    ]  # fmt: skip
    assert len({result.flops for result in results}) == 1


@pytest.mark.parametrize("n", [2, 4, 16])
@pytest.mark.parametrize("kv_heads", [2, 16])
def test_a_ring_moves_the_closed_form(n: int, kv_heads: int) -> None:
    """(n-1)/n of K and V each time, the gradients' sums all of theirs, in f32.

    Forward, computed again, and backward: three times over 3 layers.
    """
    of, chosen = model(kv_heads=kv_heads), plan(n, context_exchange="ring")
    whole = 64 / (64 / n) * SEQ * kv_heads * 128 * 2
    found = moved(chosen, CollectiveKind.PERMUTE, of)
    keys = {name: nbytes for name, nbytes in found.items() if "/keys" in name}
    sums = {name: nbytes for name, nbytes in found.items() if name not in keys}
    forward = sum(nbytes for name, nbytes in keys.items() if name.startswith("layer/"))
    assert forward == pytest.approx(3 * (n - 1) / n * 2 * whole)
    assert sum(keys.values()) == pytest.approx(3 * forward)
    assert sum(sums.values()) == pytest.approx(3 * 2 * whole * 4 / 2)
    assert not moved(chosen, CollectiveKind.ALL_GATHER, of)
    assert not moved(chosen, CollectiveKind.REDUCE_SCATTER, of)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_ulysses_exchanges_four_tensors_of_a_devices_tokens(n: int) -> None:
    """Q, K and V on the way in, the result on the way out; all again, and their gradients.

    2 bytes each of tokens x heads x head_dim (Jacobs et al., section 3.2).
    """
    found = moved(plan(n, context_exchange="all-to-all"), CollectiveKind.ALL_TO_ALL)
    tensor = n * SEQ / n * 16 * 128 * 2
    forward = [nbytes for name, nbytes in found.items() if "/layer/" in name and "bwd" not in name]
    assert forward == [3 * tensor] * 4
    assert sum(found.values()) == 3 * 3 * 4 * tensor


def test_grouped_queries_repeat_keys_to_the_axis_and_no_further() -> None:
    """4 K/V heads over 16 devices become 16, one a device; 16 over 4 stay as they are."""
    found = moved(
        plan(16, context_exchange="all-to-all"), CollectiveKind.ALL_TO_ALL, model(kv_heads=4)
    )
    narrow = moved(
        plan(4, context_exchange="all-to-all"), CollectiveKind.ALL_TO_ALL,
        model(heads=64, kv_heads=16, head_dim=32),
    )  # fmt: skip
    assert found["all-to-all/layer/v_repeated@context"] == found["all-to-all/layer/context@context"]
    assert 4 * narrow["all-to-all/layer/v@context"] == narrow["all-to-all/layer/context@context"]


def test_a_single_key_head_is_gathered() -> None:
    of, chosen = model(kv_heads=1), plan(16, context_exchange="all-to-all")
    exchanged = moved(chosen, CollectiveKind.ALL_TO_ALL, of)
    assert not any("/v@" in name or "/k_rotary@" in name for name in exchanged)
    assert "all-gather/layer/v@context" in moved(chosen, CollectiveKind.ALL_GATHER, of)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("way", ["gather", "ring"])
def test_the_last_of_n_contiguous_parts_sees_2_minus_1_nth_of_the_average(way: str, n: int) -> None:
    """(2n-1)/n, as the last 1/n of the queries see all keys but half of their own part."""
    ratio = attended(plan(n, context_exchange=way, context_balanced=False)) / attended(plan(n))
    assert ratio == pytest.approx((2 * n - 1) / n)


def attended(plan: Plan, of: Transformer | None = None) -> float:
    """Scores of all forward kernels of a device."""
    return sum(
        times * float(op.work.q_len * seen_keys(op.work) * op.work.batch * op.work.heads)
        for op, times in flat(any_program_of(of or model(), plan, POD).body)
        if isinstance(op, Compute) and isinstance(op.work, AttentionWork) and not op.work.backward
    )


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 2, 100, 513, 2048, 4096])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_ring_works_on_as_many_scores_as_one_kernel(
    window: int, kind: str, balanced: bool
) -> None:
    of = model(window=window, kind=kind)
    chosen = plan(8, context_balanced=balanced)
    alike = chosen.replace(context_exchange="ring")
    assert attended(alike, of) == pytest.approx(attended(chosen, of))


def test_only_blocks_that_a_window_reaches_travel() -> None:
    """Parts of 512 tokens: 513 keys reach one part back, 514 two; all of them, all seven."""
    shard = 8 * 512 * 16 * 128 * 2 * 2
    for window, hops in ((1, 0), (2, 1), (513, 1), (514, 2), (3586, 7), (4096, 7)):
        chosen = plan(8, context_exchange="ring", context_balanced=False)
        found = moved(chosen, CollectiveKind.PERMUTE, model(window=window))
        forward = sum(n for name, n in found.items() if name.startswith("layer/"))
        assert forward == 3 * hops * shard, window


def placed(context: int, axis: str = "context") -> Placement:
    mesh = {"fsdp": 64 // context, axis: context}
    dims = {4: (["y", "z"], ["x"]), 16: (["z"], ["x", "y"])}[context]
    return placement_from(POD, mesh, {"fsdp": dims[0], axis: dims[1]})


def test_on_an_ideal_machine_a_ring_holds_less_than_a_gather() -> None:
    """Where there are more parts than the few that a ring has in flight.

    Backward these are two of keys, values and both sums in f32: 12 parts in bf16, and the sum of
    the queries' gradients 2; gathered keys, values and their gradients are 4 n.
    """
    peaks = [
        simulate(
            model(vocab=8), plan(16, seq_len=16384, context_exchange=way, lowering="ideal"), POD,
            placement=placed(16),
        ).hbm_peak_bytes
        for way in ("ring", "gather")
    ]  # fmt: skip
    assert peaks[0] < peaks[1]


def test_a_free_ring_costs_its_passes_alone() -> None:
    """Links without end: the step is that of a free gather, and the merges of the kernel's parts.

    Vector operations that cost nothing leave the kernels' launches and what each brings along.
    Steps cost nothing either: those of the kernel on gathered keys, over blocks that the mask
    hides, have none in a ring.
    """
    free = {
        "kernel_step": 0.0,
        "ici_bandwidth": 1e18,
        "hop_latency": 0.0,
        "collective_launch": 0.0,
        "op_launch": 0.0,
        "vector_launch": 0.0,
    }
    chip = load_chip("v5p").replace(**free)
    pod = Slice(chip, "4x4x4")
    long = {"seq_len": 65536, "global_batch": 16}
    ring, gather = (
        simulate(model(), plan(4, context_exchange=way, **long), pod, placement=placed(4))
        for way in ("ring", "gather")
    )
    passes = ring.breakdown_s["vector"] - gather.breakdown_s["vector"]
    assert passes > 0
    assert ring.step_time_s - passes == pytest.approx(gather.step_time_s, rel=0.01)
