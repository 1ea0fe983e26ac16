"""Network cards and uplinks against published figures, and what sharing them costs.

A host's cards are shared by its chips: 2 x 100 Gb/s by 8 chips of v5e, 200 Gb/s by 4 of v5p, and
4 x 200 Gb/s by 8 of v6e (Cloud TPU documentation), so a pod of 256 has 6.4 and 25.6 Tb/s.
"""

from dataclasses import replace

import pytest

from tpusim.costs import capacities, dcn_route
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import CollectiveKind
from tpusim.simulation import simulate

TERABIT = 1e12 / 8


@pytest.mark.parametrize(("name", "chips", "cards"), [
    ("v5e", 8, 2 * 100e9), ("v5p", 4, 200e9), ("v6e", 8, 4 * 200e9),
])  # fmt: skip
def test_a_chips_share_of_its_hosts_cards(name: str, chips: int, cards: float) -> None:
    assert load_chip(name).dcn_bandwidth == pytest.approx(cards / 8 / chips)


@pytest.mark.parametrize(("name", "terabits"), [("v5e", 6.4), ("v6e", 25.6)])
def test_a_pods_uplink_is_the_sum_of_its_shares(name: str, terabits: float) -> None:
    pod = Slice(name, "16x16", 2)
    share = capacities(pod.chip, pod.dcn_oversubscription)["dcn+"]
    assert 256 * share == pytest.approx(terabits * TERABIT)


def test_the_devices_of_a_chip_share_its_card() -> None:
    chip = load_chip("7x")
    assert capacities(chip)["dcn+"] == chip.dcn_bandwidth / 2


def test_an_oversubscribed_uplink_takes_that_much_longer() -> None:
    """Pure data parallelism over slices whose step is bound by what crosses."""
    model = Transformer(layers=2, embed=1024, mlp=4096, heads=8, vocab=1024)
    plan = Plan(mesh={"data": 4, "dcn_data": 2}, seq_len=128, global_batch=8)
    pod = Slice("v5e", "2x2", 2)
    narrow = Slice("v5e", "2x2", 2, dcn_oversubscription=4)
    one, other = (simulate(model, plan, each) for each in (pod, narrow))
    crossed = sum(use.volume_nb for use in one.timeline.links if use.link == "dcn+") / 1e9
    assert crossed == sum(u.volume_nb for u in other.timeline.links if u.link == "dcn+") / 1e9
    longer = 3 * crossed / pod.chip.dcn_bandwidth
    assert 0.5 * longer < other.step_time_s - one.step_time_s <= 1.05 * longer


@pytest.mark.parametrize("ratio", [1, 100, 1000])
def test_no_uplink_is_used_more_than_all_the_time(ratio: float) -> None:
    """Rates are whole units of the engine, so one that is too small would be rounded away."""
    model = Transformer(layers=2, embed=1024, mlp=4096, heads=8, vocab=1024)
    plan = Plan(mesh={"data": 4, "dcn_data": 2}, seq_len=128, global_batch=8)
    result = simulate(model, plan, Slice("v5e", "2x2", 2, dcn_oversubscription=ratio))
    rate = capacities(result.pod.chip, ratio)["dcn+"]
    (crossed,) = (use.volume_nb / 1e9 for use in result.timeline.links if use.link == "dcn+")
    assert crossed / rate <= 1.001 * result.step_time_s


def test_an_all_reduce_crosses_twice_all_but_its_own_share() -> None:
    for slices in (2, 3, 8):
        route = dcn_route(CollectiveKind.ALL_REDUCE, slices)
        assert route.share == pytest.approx(2 * (slices - 1) / slices)


def test_a_mesh_axis_across_one_slice_changes_nothing() -> None:
    model = Transformer(layers=2, embed=512, mlp=2048, heads=4, vocab=512)
    plan = Plan(mesh={"fsdp": 4}, seq_len=128, global_batch=8)
    pod = Slice("v5e", "2x2")
    with_axis = replace(plan, mesh={"fsdp": 4, "dcn_data": 1})
    assert simulate(model, with_axis, pod).step_time_s == simulate(model, plan, pod).step_time_s
