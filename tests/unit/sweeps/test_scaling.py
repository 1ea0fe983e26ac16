"""Scaling curves: each point is what `simulate` says of a plan written by hand."""

from dataclasses import replace
from math import isnan

import pytest
from matplotlib.figure import Figure
from pandas import DataFrame
from search_spaces import BASE, MODEL, POD

import tpusim as ts
from tpusim.base import HardwareError, PlanError, TpusimError
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.report import plot_scaling, scaling_data
from tpusim.simulation import simulate
from tpusim.sweeps import Scaling, scaling
from tpusim.validation import with_measured


def rows_of(found: Scaling, curve: str, over: str) -> DataFrame:
    table = found.table
    return table[(table["curve"] == curve) & (table["over"] == over)].reset_index(drop=True)


@pytest.fixture(scope="module")
def curves() -> Scaling:
    return scaling(MODEL, BASE, POD)


def test_the_front_door_has_it() -> None:
    assert (ts.scaling, ts.Scaling, ts.with_measured) == (scaling, Scaling, with_measured)


@pytest.mark.parametrize("curve", ["weak", "strong"])
def test_points_over_chips_are_plans_written_by_hand(curves: Scaling, curve: str) -> None:
    """fsdp = 16 on v5e 4x4 and 32 sequences: legal counts are 2 to 128, as fsdp stays whole."""
    rows = rows_of(curves, curve, "chips")
    shapes = ["2x2", "2x4", "4x4", "4x8", "8x8", "8x16"]
    assert list(rows["topology"]) == shapes
    assert list(rows["chips"]) == [4, 8, 16, 32, 64, 128]
    for row in rows.to_dict("records"):
        chips = row["chips"]
        batch = 2 * chips if curve == "weak" else 32
        if batch < chips:
            assert row["status"] == "refused"
            assert "smaller than" in row["reason"]
            assert isnan(row["step_time_s"])
            continue
        plan = Plan(mesh={"fsdp": chips}, seq_len=64, global_batch=batch)
        result = simulate(MODEL, plan, Slice("v5e", row["topology"]))
        for key in ("step_time_s", "mfu", "hfu", "tokens_per_s", "hbm_peak_bytes"):
            assert row[key] == getattr(result, key)
        assert (row["mesh"], row["global_batch"]) == (f"fsdp={chips}", batch)


@pytest.mark.parametrize("curve", ["weak", "strong"])
def test_points_over_slices_are_plans_written_by_hand(curves: Scaling, curve: str) -> None:
    rows = rows_of(curves, curve, "slices")
    assert list(rows["slices"]) == [1, 2, 4, 8, 16, 32]
    ran = 0
    for row in rows.to_dict("records"):
        slices = row["slices"]
        batch = 32 * slices if curve == "weak" else 32
        mesh = {"fsdp": 16, "dcn_data": slices}
        plan = Plan(mesh=mesh, seq_len=64, global_batch=batch)
        if batch < 16 * slices:
            assert row["status"] == "refused"
            continue
        ran += 1
        assert row["step_time_s"] == simulate(MODEL, plan, Slice("v5e", "4x4", slices)).step_time_s
    assert ran == (6 if curve == "weak" else 2)


def test_efficiency_is_the_rate_of_a_chip_over_that_of_the_first(curves: Scaling) -> None:
    """Weak: the first step over the step. Strong: the speed-up over the factor of chips."""
    for curve, over in (("weak", "chips"), ("weak", "slices")):
        rows = rows_of(curves, curve, over)
        expected = rows["step_time_s"][0] / rows["step_time_s"]
        assert list(rows["efficiency"]) == pytest.approx(list(expected))
    rows = rows_of(curves, "strong", "chips").dropna(subset="step_time_s")
    speed_up = rows["step_time_s"][0] / rows["step_time_s"]
    assert list(rows["efficiency"]) == pytest.approx(list(speed_up / (rows["chips"] / 4)))
    assert rows["efficiency"][0] == 1


def test_the_first_is_the_first_that_fits() -> None:
    model = Transformer(layers=8, embed=8192, mlp=32768, heads=64, vocab=32000)
    plan = Plan(mesh={"fsdp": 64}, seq_len=1024, global_batch=64)
    rows = rows_of(scaling(model, plan, Slice("v5e", "8x8"), chips=[4, 8, 64]), "weak", "chips")
    assert list(rows["status"]) == ["does not fit", "does not fit", "ok"]
    assert rows["efficiency"][2] == 1
    assert rows["efficiency"][0] == pytest.approx(rows["step_time_s"][2] / rows["step_time_s"][0])
    none = rows_of(scaling(model, plan, Slice("v5e", "8x8"), chips=[4, 8]), "weak", "chips")
    assert none["efficiency"][0] == 1


def test_the_axis_that_grows() -> None:
    def grows(mesh: dict[str, int], slices: int = 1, **how: object) -> dict[str, str]:
        plan = Plan(mesh=mesh, seq_len=64, global_batch=32)
        pod = Slice("v5e", "4x4", slices)
        given = {"chips": [16], "slices": [slices], **how}
        return scaling(MODEL, plan, pod, **given).grows  # type: ignore[arg-type]

    assert grows({"fsdp": 16}) == {"chips": "fsdp", "slices": "dcn_data"}
    assert grows({"data": 1, "fsdp": 4, "tensor": 4})["chips"] == "fsdp"
    assert grows({"tensor": 4, "fsdp": 2, "data": 2})["chips"] == "data"
    assert grows({"fsdp": 4, "tensor": 4}, axis="tensor")["chips"] == "tensor"
    assert grows({"fsdp": 1, "tensor": 16})["chips"] == "fsdp"
    assert grows({"fsdp": 16, "dcn_fsdp": 2}, 2)["slices"] == "dcn_fsdp"


def test_one_list_makes_its_curves_only() -> None:
    assert set(scaling(MODEL, BASE, POD, chips=[16]).table["over"]) == {"chips"}
    assert set(scaling(MODEL, BASE, POD, slices=[1]).table["over"]) == {"slices"}


def test_what_the_slice_has_stays() -> None:
    """The DCN's ratio, the cores' clock and a twist; the plan's placement only over slices."""
    pod = Slice("v4", "4x4x8_twisted", 2, dcn_oversubscription=2.0, clock="900 MHz")
    plan = Plan(
        mesh={"fsdp": 128, "dcn_data": 2}, seq_len=64, global_batch=256,
        placement={"fsdp": ["x", "y", "z"]},
    )  # fmt: skip
    found = scaling(MODEL, plan, pod, chips=[64, 128], slices=[2, 4])
    for point in found.points:
        assert point.pod.dcn_oversubscription == 2.0
        assert point.pod.clock == 900e6
        assert point.pod.topology.twisted == (point.pod.topology.chips == 128)
    over = found.table["over"].tolist()
    given = [point.plan.placement is not None for point in found.points]
    assert given == [each == "slices" for each in over]


def test_a_batch_that_is_not_whole_is_refused_with_its_reason() -> None:
    plan = replace(BASE, global_batch=33, mesh={"fsdp": 1, "tensor": 4})
    found = scaling(MODEL, plan, Slice("v5e", "2x2"), chips=[4, 8], slices=None)
    assert rows_of(found, "weak", "chips")["status"].tolist() == ["ok", "ok"]
    smaller = Plan(mesh={"fsdp": 2, "tensor": 4}, seq_len=64, global_batch=34 // 2)
    rows = rows_of(scaling(MODEL, smaller, Slice("v5e", "2x4"), chips=[4, 8]), "weak", "chips")
    assert rows["reason"][0] == "plan.global_batch would be 17/2: not a whole number of examples"


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"chips": [12]}, HardwareError, "chips = 12: v5e has no slice of 12 chips; nearest are"),
        ({"chips": []}, PlanError, r"chips is \[\]; write whole numbers from 1 up that rise"),
        ({"chips": [16, 16]}, PlanError, "that rise"),
        ({"slices": [2, 1]}, PlanError, "slices is .* that rise"),
        ({"slices": "2"}, PlanError, "slices is '2'; write whole numbers"),
        ({"slices": [0]}, PlanError, "write whole numbers from 1 up"),
        ({"axis": "fdsp"}, PlanError, "axis is 'fdsp', which cannot grow: did you mean 'fsdp'"),
        ({"axis": "fsdp", "slices": [1]}, PlanError, "only slices grow; leave it out"),
        ({"axis": "tensor"}, PlanError, "axis is 'tensor', which cannot grow"),
    ],
)
def test_mistakes_are_sentences(
    how: dict[str, object], error: type[TpusimError], says: str
) -> None:
    with pytest.raises(error, match=says):
        scaling(MODEL, BASE, POD, **how)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_an_axis_that_cannot_grow_so() -> None:
    plan = Plan(mesh={"data": 2, "fsdp": 8}, seq_len=64, global_batch=32)
    with pytest.raises(PlanError, match="chips = 4: the axis data = 2 cannot be 1/4 of itself"):
        scaling(MODEL, plan, POD, chips=[4])
    assert rows_of(scaling(MODEL, plan, POD), "weak", "chips")["chips"][0] == 8
    two = Slice("v5e", "4x4", 2)
    plan = Plan(mesh={"fsdp": 16, "dcn_data": 2}, seq_len=64, global_batch=32)
    assert rows_of(scaling(MODEL, plan, two, slices=[1, 2]), "weak", "slices")["slices"][0] == 1
    staged = Plan(mesh={"fsdp": 16, "dcn_stage": 2}, seq_len=64, global_batch=32, microbatches=2)
    with pytest.raises(PlanError, match="slices = 3: the axis dcn_data = 1 cannot be 3/2"):
        scaling(MODEL, staged, two, slices=[3])
    assert rows_of(scaling(MODEL, staged, two), "weak", "slices")["slices"][0] == 2


def test_no_axis_shards_the_batch() -> None:
    plan = Plan(mesh={"tensor": 4}, seq_len=64, global_batch=32)
    with pytest.raises(PlanError, match=r"no axis of plan.mesh shards the batch .* \(tensor\)"):
        scaling(MODEL, plan, Slice("v5e", "2x2"))


def test_slow_parts_have_no_curve() -> None:
    pod = Slice("v5e", "4x4", slow={"chips": [{"at": [0, 0], "compute": 0.5}]})
    with pytest.raises(PlanError, match=r"the slice has slow parts .* leave them out"):
        scaling(MODEL, BASE, pod)


def test_the_figure_has_the_points_of_the_table(curves: Scaling) -> None:
    data = scaling_data(with_measured(curves).table)
    assert [(each.curve, each.over) for each in data] == [
        ("weak", "chips"), ("strong", "chips"), ("weak", "slices"), ("strong", "slices"),
    ]  # fmt: skip
    weak = rows_of(curves, "weak", "chips")
    assert data[0].points == tuple(zip(weak["chips"], weak["mfu"], strict=True))
    assert not any(each.measured or each.too_large for each in data)
    ax = plot_scaling(data, ax=Figure().add_subplot())
    assert [len(line.get_xdata()) for line in ax.lines] == [len(each.points) for each in data]
    assert ax.get_ylim()[1] > max(weak["mfu"])


def test_more_hosts_feed_more_chips() -> None:
    """A starved step of the weak curve stays, and of the strong one halves with each doubling."""
    slow = ts.Input(workers=1, decode_s=10e-3)
    found = scaling(MODEL, BASE.replace(global_batch=64), POD, chips=[16, 32, 64], input=slow)
    weak, strong = (rows_of(found, curve, "chips")["step_time_s"] for curve in ("weak", "strong"))
    own = simulate(MODEL, BASE.replace(global_batch=64), POD, input=slow)
    assert own.input is not None
    assert own.input.starved_by == "decode"
    assert list(weak) == pytest.approx([own.step_time_s] * 3, rel=1e-3)
    assert list(strong) == pytest.approx([own.step_time_s / n for n in (1, 2, 4)], rel=1e-3)
    with pytest.raises(PlanError, match="input is 3"):
        scaling(MODEL, BASE, POD, input=3)  # type: ignore[arg-type]
