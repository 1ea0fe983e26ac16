"""The chips of the catalogue: consistent among themselves, and what-ifs."""

import dataclasses
import pickle

import pytest

from tpusim.base import HardwareError, UnitError
from tpusim.hardware import Chip, Topology, chip_names, load_chip

NAMES = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
EACH = pytest.mark.parametrize("chip", [load_chip(name) for name in NAMES], ids=NAMES)


def test_the_catalogue_has_the_generations_in_order() -> None:
    assert list(chip_names()) == NAMES
    assert [load_chip(name).year for name in NAMES] == sorted(load_chip(n).year for n in NAMES)


@EACH
def test_the_bf16_peak_is_the_arrays_rate(chip: Chip) -> None:
    """2 x MXUs x side^2 x clock, one row a cycle; two rows on arrays of 256."""
    rows = {128: 1, 256: 2}[chip.mxu_side]
    array = 2 * chip.mxus * chip.mxu_side**2 * chip.clock * rows
    assert array == pytest.approx(chip.flops["bf16"], rel=0.005)


@EACH
def test_the_vector_rate_is_whole_alus_a_lane(chip: Chip) -> None:
    alus = chip.vpu_flops / (chip.tensor_cores * 1024 * chip.clock)
    assert alus == pytest.approx(4 if chip.year >= 2023 else 2, rel=0.03)


@EACH
def test_f32_has_the_bf16_peak_and_no_dtype_less_than_it(chip: Chip) -> None:
    assert chip.flops["f32"] == chip.flops["bf16"]
    assert all(rate >= chip.flops["bf16"] for rate in chip.flops.values())


@EACH
def test_the_pod_is_a_legal_slice_of_as_many_dimensions(chip: Chip) -> None:
    pod = Topology.of(chip.generation, chip.pod_shape)
    assert len(pod.dims) == chip.ici_dimensions == len(chip.slice_rules.listed[0])
    assert all(pod.wrap)


@EACH
def test_usable_memory_is_nearly_all_of_it(chip: Chip) -> None:
    """v5p: its page says 95 GiB and its compiler 95.74. v2: its compiler keeps 7.48 of 8 GiB."""
    assert 0.93 < chip.hbm_usable_bytes / chip.hbm_bytes < 1.01


@EACH
def test_the_devices_share_the_chip(chip: Chip) -> None:
    device = chip.device
    assert chip.devices == (2 if chip.name in ("v2", "v3", "7x") else 1)
    assert (chip.die_to_die_bandwidth > 0) == (chip.devices == 2)
    for name in ("vpu_flops", "hbm_bytes", "hbm_usable_bytes", "hbm_bandwidth", "vmem_bytes"):
        assert getattr(device, name) * chip.devices == getattr(chip, name)
    assert device.mxus * chip.devices == chip.mxus
    assert {dtype: rate * chip.devices for dtype, rate in device.flops.items()} == dict(chip.flops)
    assert device.costs is chip.costs


def test_numbers_that_the_field_knows_by_heart() -> None:
    v4, v5p, ironwood = load_chip("v4"), load_chip("v5p"), load_chip("7x")
    assert v4.flops["bf16"] == 275e12
    assert v4.hbm_bytes == 32 * 2**30
    assert v4.hbm_bandwidth == 1.2e12
    assert v4.cmem_bytes == 128 * 2**20
    assert v5p.hbm_bandwidth == 2765e9
    assert v5p.hbm_usable_bytes == 95.74 * 2**30
    assert ironwood.device.peak("fp8") == 2307e12
    assert ironwood.device.hbm_usable_bytes == 94.74 * 2**30
    assert load_chip("v6e").dcn_bandwidth == 12.5e9
    assert load_chip("v3").flops["bf16"] == 123e12


def test_a_dtype_without_a_matmul_is_named() -> None:
    with pytest.raises(HardwareError, match="7x has no int8 matmul; it multiplies bf16, f32, fp8"):
        load_chip("7x").device.peak("int8")


def test_a_what_if_changes_what_it_names_and_nothing_else() -> None:
    v4 = load_chip("v4")
    faster = v4.replace(hbm_bandwidth="2.4 TB/s", hop_latency="1 us", flops={"bf16": 300e12})
    assert faster.hbm_bandwidth == 2 * v4.hbm_bandwidth
    assert faster.costs.hop_latency == 1e-6
    assert faster.flops["bf16"] == 300e12
    assert faster.flops["int8"] == v4.flops["int8"]
    back = faster.replace(
        hbm_bandwidth=v4.hbm_bandwidth, costs=v4.costs, flops={"bf16": "275 TFLOP/s"}
    )
    assert back == v4
    assert load_chip("v4") is v4
    assert v4.replace(pod_shape="8x8x8").pod_shape == (8, 8, 8)
    assert v4.replace(power=None).power is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hbm_bandwith": 1e12}, "no field 'hbm_bandwith'; did you mean 'hbm_bandwidth'"),
        ({"hop_latenzy": 1e-6}, "did you mean 'hop_latency'"),
        ({"hbm_bandwidth": -1.0}, "v4: hbm_bandwidth is -1.0; write a finite number above zero"),
        ({"hbm_bandwidth": 0}, "above zero"),
        ({"hop_latency": -1e-6}, "costs: hop_latency is -1e-06; .* not below zero"),
        ({"clock": float("nan")}, "clock is nan"),
        ({"hbm_bytes": None}, "hbm_bytes is None; write a number"),
        ({"mxus": 8.0}, "mxus is 8.0; write a whole number"),
        ({"mxus": "8"}, "mxus is '8'; write a whole number, without a unit"),
        ({"ici_efficiency": 1.1}, "ici_efficiency is 1.1, a share of one"),
        ({"ici_efficiency": "90 %"}, "ici_efficiency is '90 %'; write a number, without a unit"),
        ({"matmul_overlap": 0.5}, "write 1 .no overlap. or more"),
        ({"flops": {"bf61": 1e12}}, "unknown dtype 'bf61'; did you mean 'bf16'"),
        ({"flops": 1e12}, "write peaks by dtype"),
        ({"pod_shape": "8*8"}, "is not a topology"),
        ({"devices": 3}, "8 MXUs cannot be shared by 3 devices; write a multiple of 3"),
    ],
)
def test_a_what_if_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(HardwareError, match=sentence):
        load_chip("v4").replace(**changes)


def test_a_what_if_with_a_wrong_unit_names_the_field() -> None:
    with pytest.raises(UnitError, match=r"hbm_bandwidth: '2.4 TB' has the unit 'TB'"):
        load_chip("v4").replace(hbm_bandwidth="2.4 TB")


@EACH
def test_a_chip_is_a_value(chip: Chip) -> None:
    """Frozen, hashable, and the same after a trip to another process."""
    copy = pickle.loads(pickle.dumps(chip))
    assert copy == chip
    assert hash(copy) == hash(chip)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.clock = 1.0  # type: ignore[misc]
