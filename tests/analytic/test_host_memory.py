"""What each host keeps for its devices, by hand; more than it has is said, not refused."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.base import format_bytes
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.results import Result
from tpusim.simulation import simulate

BATCH, SEQ, LAYERS, BF16, F32 = 64, 128, 6, 2, 4
STAGES, MICROBATCHES = 4, 8
MODEL = small(layers=LAYERS, kv_heads=2)
LANES = 128
WIDTHS = {"layer_in": 64, "q": 8 * LANES, "k": 2 * LANES, "v": 2 * LANES, "context": 8 * LANES,
          "out": 64, "mlp_in_0": 256, "mlp_in_1": 256}  # fmt: skip
"""Elements a token of each tensor, as a kernel's heads of 32 take all lanes of a tile."""
SOME = ("layer_in", "q", "v", "mlp_in_0")


def run(pod: Slice, offload: tuple[str, ...], model: Transformer = MODEL, **plan: Any) -> Result:
    across = {"dcn_data": pod.num_slices} if pod.num_slices > 1 else {}
    mesh = {"fsdp": pod.devices // pod.num_slices, **across}
    given = {"seq_len": SEQ, "global_batch": BATCH, "offload": offload}
    return simulate(model, plan_of(mesh, **(given | plan)), pod)


@pytest.mark.parametrize(
    ("pod", "hosts"),
    [
        (("v5e", "4x4"), 2),
        (("v5e", "2x2"), 1),
        (("v6e", "4x8"), 4),
        (("v5p", "2x2x4"), 4),
        (("7x", "2x2x2"), 2),
        (("v5e", "4x4", 2), 4),
    ],
)
@pytest.mark.parametrize("offload", [("layer_in",), SOME, tuple(WIDTHS)])
def test_hosts_share_the_layers_of_all_tensors(
    pod: tuple[Any, ...], hosts: int, offload: tuple[str, ...]
) -> None:
    """Layers x tokens x width in bf16, over all hosts of all slices, chips or half chips alike."""
    tokens = BATCH * SEQ
    whole = LAYERS * tokens * sum(WIDTHS[name] for name in offload) * BF16
    assert run(Slice(*pod), offload).host_need_bytes == whole / hosts


def test_tensors_that_stay_need_no_host() -> None:
    assert run(Slice("v5e", "4x4"), (), save=SOME).host_need_bytes == 0


@pytest.mark.parametrize(("attention", "head_dim"), [("dot", 32), ("flash", LANES)])
def test_a_pattern_of_layers_offloads_each_of_them(attention: str, head_dim: int) -> None:
    """Three layers a trip, of which each has its own input, and its own queries.

    head_dim: what a head of 32 takes.
    """
    model = small(layers=LAYERS, window=16, global_every=3, attention=attention)
    needed = run(Slice("v5e", "4x4"), ("layer_in", "q"), model).host_need_bytes
    assert needed == LAYERS * BATCH * SEQ * (64 + 8 * head_dim) * BF16 / 2


@pytest.mark.parametrize(
    ("optimizer", "dtype", "each"),
    [("adam", "f32", 2 * F32), ("adam", "bf16", 2 * BF16), ("sgd", "f32", 0)],
)
def test_moments_are_kept_beside_the_tensors(optimizer: str, dtype: str, each: int) -> None:
    """Two a weight, the matrices' shared out over the devices and the norms' on every one."""
    pod = Slice("v5e", "4x4")
    plan = {"offload_optimizer": True, "optimizer": optimizer, "moment_dtype": dtype}
    tensors = run(pod, SOME).host_need_bytes
    norms = (2 * LAYERS + 1) * 64
    shared = (MODEL.parameter_count - norms) / 2 + 8 * norms
    assert run(pod, SOME, **plan).host_need_bytes == tensors + each * shared


@pytest.mark.parametrize("share", [0.5, 0.999, 1.0])
def test_a_host_that_is_too_small_is_noted_and_the_step_is_simulated(share: float) -> None:
    """Only where it is: the times are those of any host."""
    pod = Slice("v5e", "4x4")
    wanted = run(pod, SOME)
    have = share * wanted.host_need_bytes
    narrow = Slice(pod.chip.replace(host_bytes=have), "4x4")
    found = run(narrow, SOME)
    assert found.fits
    assert found.step_time_s == wanted.step_time_s
    note = (
        f"note {format_bytes(wanted.host_need_bytes)} are offloaded to each host, which has "
        f"{format_bytes(have)}"
    )
    assert (note in " ".join(str(found).split())) == (share < 1)


def test_a_host_of_unknown_size_is_not_judged() -> None:
    """v4's catalogue gives none."""
    assert load_chip("v4").host_bytes is None
    found = run(Slice("v4", "2x2x4"), tuple(WIDTHS))
    assert found.host_need_bytes > 0
    assert "offloaded to each host" not in str(found)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_microbatch_writes_over_what_the_one_before_it_left(parts: int) -> None:
    """The host keeps one of them, and the moments of all weights."""
    pod, plan = Slice("v5e", "4x4"), {"offload_optimizer": True}
    moments = run(pod, (), **plan).host_need_bytes
    tensors = run(pod, SOME).host_need_bytes
    assert run(pod, SOME, microbatches=parts, **plan).host_need_bytes == tensors / parts + moments


@pytest.mark.parametrize(
    ("schedule", "chunks", "alive"),
    [
        ("gpipe", 1, MICROBATCHES),
        ("1f1b", 1, STAGES),
        ("interleaved", 2, 2 * (STAGES - 1) + STAGES + 1),
        ("circular", 1, MICROBATCHES + STAGES - 1),
    ],
)
def test_a_stage_keeps_those_of_the_microbatches_in_flight(
    schedule: str, chunks: int, alive: int
) -> None:
    """As many as wait for their backward pass on the first stage, each of a part's layers.

    Interleaved ones run 2 (p - 1) + p ahead, and one more is at work (arXiv:2104.04473). A circular
    pipeline saves what it computes while it fills, too.
    """
    model = small(layers=8)
    found = simulate(
        model,
        plan_of(
            {"stage": STAGES, "fsdp": 4}, seq_len=SEQ, global_batch=BATCH, offload=("layer_in",),
            microbatches=MICROBATCHES, schedule=schedule, virtual_stages=chunks,
        ),
        Slice("v5e", "4x4"),
    )  # fmt: skip
    tokens = BATCH // MICROBATCHES * SEQ
    each = 8 / STAGES / chunks * tokens * 64 * BF16 / 4
    assert found.host_need_bytes == found.pod.chip.host_chips * alive * each
