"""Slices: what they count, their names, and the names that are none."""

import dataclasses
import pickle

import pytest

from tpusim.base import HardwareError
from tpusim.hardware import Slice, load_chip, parse_slice


def test_the_flagship_slice() -> None:
    pod = Slice("v4", "8x16x16")
    assert pod.chips == pod.devices == 2048
    assert pod.name == "v4-4096"
    assert pod.topology.wrap == (True, True, True)
    assert str(pod) == "v4:8x16x16"


def test_slices_joined_by_dcn_count_together() -> None:
    pods = Slice("7x", "4x8x8", num_slices=3)
    assert pods.chips == 768
    assert pods.devices == 1536
    assert pods.name == "tpu7x-512"
    assert str(pods) == "7x:4x8x8 x 3 slices"


def test_a_what_if_chip_keeps_the_generations_rules() -> None:
    mine = load_chip("v5e").replace(name="mine", hbm_bandwidth="1 TB/s")
    pod = Slice(mine, "8x16")
    assert pod.topology.wrap == (False, True)
    assert str(pod) == "mine:8x16"
    assert Slice("v4", (4, 8, 8), twisted=True).topology.twisted


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("v4-4096", "v4:8x16x16"),
        ("v4-8", "v4:2x2x1"),
        ("v5litepod-256", "v5e:16x16"),
        ("v5e-8", "v5e:2x4"),
        ("v5p-128", "v5p:4x4x4"),
        ("v5p-1024", "v5p:8x8x8"),
        ("v5p-512", "v5p:4x8x8"),
        ("v6e-256", "v6e:16x16"),
        ("tpu7x-128", "7x:4x4x4"),
        ("tpu7x-4x4x4", "7x:4x4x4"),
        ("v3-8", "v3:2x2"),
        ("v3-2048", "v3:32x32"),
        ("v2-512", "v2:16x16"),
        ("v4:16x8x16", "v4:16x8x16"),
        ("7x:1x1x1", "7x:1x1x1"),
        ("v4:4x4x8_twisted", "v4:4x4x8_twisted"),
        ("v7x-8", "7x:2x2x1"),
        ("ironwood-256", "7x:4x4x8"),
        ("Trillium-256", "v6e:16x16"),
        ("v5lite-256", "v5e:16x16"),
        ("TPU v4-8", "v4:2x2x1"),
        ("tpu-v5-lite-podslice:4x4", "v5e:4x4"),
        ("v3-8192", "v3:32x128"),
        ("v3:32x64", "v3:32x64"),
        ("tpu7-8", "7x:2x2x1"),
    ],
)
def test_a_name_stands_for_its_default_shape(name: str, written: str) -> None:
    assert str(parse_slice(name)) == written


@pytest.mark.parametrize("name", ["v2-512", "v3-2048", "v4-4096", "v5e-256", "v5p-17920"])
def test_a_name_leads_to_a_slice_of_that_name(name: str) -> None:
    assert Slice.from_name(name).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "v4",
            "'v4' is not the name of a slice; it says the chip, v4, but no size; write for "
            "example 'v4-128'",
        ),
        ("mine", "'mine' is not the name of a slice; write for example 'v4-4096' or 'v4:8x16x16'"),
        ("v5-256", "no generation is called 'v5'; did you mean 'v5e' or 'v5p'"),
        ("v4-4095", "counts TensorCores, 2 a chip; write an even number, as in 'v4-4094'"),
        ("v4-100", "v4 has no slice of 50 chips; nearest are 2x4x4"),
        ("v4-99999999", "is not the name of a slice"),
        ("v6e-0", "no slice of 0 chips"),
        ("v5e:8x32", "v5e has no slice 8x32"),
        ("v44:4x4x4", "no chip 'v44' in the catalogue; valid are 7x, v2, v3, v4, v5e"),
        ("v4:", "'' is not a topology"),
        ("tpu7x-4x4x", "'4x4x' is not a topology"),
        ("v4:4x4x4_twisted", "v4 4x4x4 cannot be twisted"),
        ("v5e:4x4_twisted", "v5e has no twisted tori; only v4 and v5p have"),
        ("v4:4x4x8_twistd", "'4x4x8_twistd' is not a topology; .* written '4x4x8_twisted'"),
        ("v4:4x4x8_Twisted", "'4x4x8_Twisted' is not a topology; .* written '4x4x8_twisted'"),
        ("v4:twisted", "'twisted' is not a topology; write chips along each dimension"),
    ],
)
def test_what_names_no_slice_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(HardwareError, match=sentence):
        parse_slice(text)


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2"])
def test_slices_are_counted_from_one(count: object) -> None:
    with pytest.raises(HardwareError, match=r"num_slices is .*; write a whole number from 1 up"):
        Slice("v4", "4x4x4", num_slices=count)  # type: ignore[arg-type]


def test_more_slices_than_memory_holds_are_refused() -> None:
    with pytest.raises(HardwareError, match=r"num_slices is 1,000,000,000.*at most 1,000,000"):
        Slice("v4", "4x4x4", num_slices=10**9)


def test_a_slice_is_a_value() -> None:
    pod = Slice("v4", "4x4x8", num_slices=2, twisted=True)
    assert pickle.loads(pickle.dumps(pod)) == pod
    assert hash(pod) == hash(Slice("v4", "4x4x8", 2, True))
    assert pod != Slice("v4", "4x4x8", 2)
    assert pod != Slice("v4", "4x4x8", 2, True, dcn_oversubscription=2)


def test_a_twisted_torus_is_spelled_in_its_shape_or_said_beside_it() -> None:
    pod = Slice("v5p", "4x8x8", twisted=True)
    assert Slice("v5p", "4x8x8_twisted") == parse_slice(str(pod)) == pod


def test_an_oversubscribed_uplink_is_printed() -> None:
    assert str(Slice("v5e", "16x16", 4, dcn_oversubscription=1)) == "v5e:16x16 x 4 slices"
    thin = Slice.from_name("v5e-256", 4, dcn_oversubscription=2.5)
    assert str(thin) == "v5e:16x16 x 4 slices, DCN oversubscribed 2.5:1"
    assert thin.dcn_oversubscription == 2.5


@pytest.mark.parametrize("ratio", [0.5, -2, float("inf"), float("nan"), 1001, 10**400, True, "2"])
def test_an_uplink_takes_at_most_what_the_hosts_send(ratio: object) -> None:
    with pytest.raises(HardwareError, match=r"dcn_oversubscription is .*; write a number from 1"):
        Slice("v4", "4x4x4", 2, dcn_oversubscription=ratio)  # type: ignore[arg-type]


def test_cores_at_a_lower_clock() -> None:
    """What runs at the clock of the cores is slower, nothing else, and once however often."""
    own, slow = Slice("7x", "4x4x4"), Slice("7x", "4x4x4", clock="1.1 GHz")
    assert (own.clock, slow.clock) == (None, 1.1e9)
    assert str(slow) == "7x:4x4x4, cores at 1.1 GHz"
    assert Slice(slow.chip, "4x4x4", clock=slow.clock) == slow
    changed = {"clock", "costs", "flops", "vpu_flops", "clock_share"}
    for field in filter(lambda field: field.compare, dataclasses.fields(own.chip)):
        same = getattr(own.chip, field.name) == getattr(slow.chip, field.name)
        assert same is (field.name not in changed), field.name
    costs, slower = own.chip.costs, slow.chip.costs
    assert (slower.lane_crossing or 0) == 2 * (costs.lane_crossing or 0) > 0
    assert slower == dataclasses.replace(
        costs, lane_crossing=slower.lane_crossing, kernel_step=2 * costs.kernel_step
    )
    assert dict(slow.chip.flops) == {dtype: rate / 2 for dtype, rate in own.chip.flops.items()}
    assert slow.chip.vpu_flops == own.chip.vpu_flops / 2
    assert slow.chip.full_peak == own.chip.full_peak == own.chip.flops["bf16"]
    assert Slice.from_name("tpu7x-128", clock=1.1e9) == slow
    assert Slice("7x", "4x4x4", clock="2.2 GHz").chip == own.chip


@pytest.mark.parametrize("clock", [0, -1.0, True, float("nan"), float("inf"), 2.3e9, "2.3 GHz"])
def test_a_clock_that_the_cores_do_not_have(clock: object) -> None:
    with pytest.raises(HardwareError, match=r"up to 2.2 GHz; write a clock up to that with its"):
        Slice("7x", "4x4x4", clock=clock)  # type: ignore[arg-type]
