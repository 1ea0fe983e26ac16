"""Torus heat map and matrix of axes: single links against closed forms, and what is drawn once."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from reports import MOST_PLANES, torus_panels

import tpusim as ts
from tpusim.base import Phase
from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.hardware import Topology, placement_from, placements
from tpusim.program import Collective, CollectiveKind, Loop, Program
from tpusim.report import axes_data, plot_axes, plot_torus, torus_data, utilisation_data
from tpusim.report.figures.torus_heatmap import busiest_links
from tpusim.report.figures.torus_use import TorusUse
from tpusim.results import Result

NBYTES = 2**30


@cache
def result(chip: str, shape: str, slices: int = 1, **mesh: int) -> Result:
    model = ts.models.Transformer(layers=2, embed=1024, mlp=4096, heads=16, vocab=32000)
    pod = ts.Slice(chip, shape, slices)
    plan = ts.Plan(mesh=mesh, seq_len=256, global_batch=2 * pod.devices)
    return ts.simulate(model, plan, pod, among=placements(pod, mesh))


def gathered(chip: str, shape: str, axis: dict[str, list[str]], times: int = 1) -> Result:
    """A run of nothing but an all-gather over `gather`, which lies as `axis` says."""
    pod = ts.Slice(chip, shape)
    lengths = dict(zip(pod.topology.names, pod.topology.dims, strict=True))
    rest = [name for name in lengths if name not in axis["gather"] and lengths[name] > 1]
    size = int(np.prod([lengths[name] for name in axis["gather"]]))
    mesh = {"gather": size, "rest": pod.topology.chips // size}
    placement = placement_from(pod, mesh, {**axis, "rest": rest})
    op = Collective(
        name="gather", phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER, axes=("gather",),
        bytes=float(NBYTES), dtype="bf16",
    )  # fmt: skip
    body = (Loop(name="loop", trips=times, body=(op,)),)
    program = Program(name="one", axes=tuple(mesh.items()), body=body)
    timeline = run([cost_program(program, pod, placement)])
    known = result("v5e", "1x1", fsdp=1)
    return replace(known, pod=pod, programs=(program,), placement=placement, timeline=timeline)


def bytes_of(one: Result, way: str) -> list[float]:
    """Chunks of a sixteenth or a quarter of a gather on the links of a direction, in a row."""
    rate = next(use.rate_nb_per_ps for use in one.timeline.links if use.link == f"ici:{way}")
    shares = torus_data(one).of(way)[0]
    return list(shares * rate * one.timeline.total_ps * 1e-9 / NBYTES)


def test_the_links_of_a_ring_are_all_alike() -> None:
    one = gathered("v5e", "8x16", {"gather": ["y"]})
    for way in ("y+", "y-"):
        assert bytes_of(one, way) == pytest.approx([15 / 32] * 16, rel=1e-6)
    assert not torus_data(one).of("x+")[:-1].any()


@pytest.mark.parametrize("times", [1, 5])
def test_a_line_gathers_most_over_its_last_link(times: int) -> None:
    one = gathered("v5e", "4x4", {"gather": ["y"]}, times)
    chunks = [times * part / 4 for part in (1, 2, 3)]
    assert bytes_of(one, "y+") == pytest.approx([*chunks, np.nan], rel=1e-6, nan_ok=True)
    assert bytes_of(one, "y-") == pytest.approx([np.nan, *chunks[::-1]], rel=1e-6, nan_ok=True)


def test_two_devices_of_a_chip_share_what_their_chip_gathers() -> None:
    use = torus_data(result("7x", "2x2x2", fsdp=16))
    rows = {row.resource: row.total for row in utilisation_data(result("7x", "2x2x2", fsdp=16))}
    assert use.busiest["x+"] > 0
    assert use.busiest["x+"] <= rows["ici:x+"] * (1 + 1e-9) <= 1


def test_only_links_that_exist_have_a_share() -> None:
    use = torus_data(result("v4", "2x2x1", fsdp=4))
    assert np.isnan(use.of("x+")[1]).all()
    assert np.isnan(use.of("x-")[0]).all()
    assert [use.exists(way) for way in ("x+", "y-", "z+", "z-")] == [True, True, False, False]


def test_planes_and_directions_that_are_alike_are_drawn_once() -> None:
    shown = torus_panels(torus_data(gathered("v4", "4x4x8", {"gather": ["z"]})))
    assert [panel.title for panel in shown.panels] == ["z±, y = 0–3"]
    assert (shown.down, shown.across, shown.unused) == ("x", "z", ("x", "y"))


def test_planes_are_cut_where_most_are_alike() -> None:
    shown = torus_panels(torus_data(gathered("v4", "2x2x4", {"gather": ["z"]})))
    assert [panel.title for panel in shown.panels] == ["z+, y = 0, 1", "z-, y = 0, 1"]
    assert shown.panels[0].shares[0] == pytest.approx(
        shown.panels[0].shares[0, 0] * np.array([1, 2, 3, np.nan]), rel=1e-6, nan_ok=True
    )


def test_of_many_planes_each_place_shows_the_busiest() -> None:
    topology = Topology((8, 8, 8), (True,) * 3)
    shares = np.zeros((3, 2, 8, 8, 8))
    shares[0, 0] = np.random.default_rng(0).random((8, 8, 8))
    (one, other) = torus_panels(TorusUse(topology, shares)).panels
    assert one.title == "x+, the busiest of z = 0–7"
    assert np.array_equal(one.shares, shares[0, 0].max(axis=2))
    assert (other.title, other.shares.any()) == ("x-, z = 0–7", False)
    assert MOST_PLANES < 8


def test_rows_are_the_axes_that_communicate_and_columns_the_links_that_there_are() -> None:
    data = axes_data(result("v5e", "4x8", 2, dcn_data=2, fsdp=8, tensor=4))
    assert set(data.rows) == {"fsdp", "tensor", "dcn_data"}
    assert data.columns == ("ici:x+", "ici:x-", "ici:y+", "ici:y-", "dcn+", "dcn-")
    crossed = {
        row: [bool(n) for n in cells] for row, cells in zip(data.rows, data.bytes, strict=True)
    }
    assert crossed["tensor"] == [True, True, False, False, False, False]
    assert crossed["dcn_data"] == [False, False, False, False, True, True]
    most = [max(cells) for cells in data.bytes]
    assert most == sorted(most, reverse=True)


def test_a_row_of_the_matrix_is_what_its_ring_carries() -> None:
    data = axes_data(gathered("v5e", "8x16", {"gather": ["y"]}, times=3))
    assert data.rows == ("gather",)
    assert data.bytes[0] == pytest.approx((0, 0, *[3 * NBYTES * 15 / 32] * 2), rel=1e-6)
    assert data.totals == data.bytes[0]


def test_a_row_says_where_its_axes_lie() -> None:
    ax = plot_axes(result("7x", "2x2x2", 2, dcn_data=2, fsdp=8, tensor=2))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert "dcn_data = 2 slices" in names
    assert any(name.startswith("tensor = 2 on ") for name in names)
    assert names[-1] == "all"
    columns = [tick.get_text() for tick in ax.get_xticklabels()]
    assert columns[-2:] == ["die", "DCN"]


def test_a_run_on_one_chip_says_that_nothing_crosses_a_link() -> None:
    one = result("v5e", "1x1", fsdp=1)
    assert plot_torus(one).get_title("left").endswith(": nothing crosses a link of the torus")
    assert plot_axes(one).get_title("left").endswith(": nothing crosses a link")


def test_slices_of_one_chip_cross_dcn_alone() -> None:
    several = result("v5e", "1x1", 4, dcn_data=4)
    assert "nothing crosses" in plot_torus(several).get_title("left")
    assert "dcn_data puts most on its busiest links, " in plot_axes(several).get_title("left")


@pytest.mark.parametrize(
    ("shape", "title"),
    [("8x16", "the busiest links are y±, "), ("4x4", "the busiest links are y±, ")],
)
def test_the_title_names_the_busiest_links(shape: str, title: str) -> None:
    ax = plot_torus(gathered("v5e", shape, {"gather": ["y"]}))
    assert title in ax.get_title("left")
    assert ax.get_title("left").endswith("% of the step")


def test_the_title_names_links_that_are_as_busy_as_it_says() -> None:
    shares = np.array([[[[0.1106, 0.1]], [[0.11055, 0.1]]], [[[0.11, 0.1]], [[0.1, 0.1]]]])
    assert busiest_links(TorusUse(Topology((1, 2), (False, False)), shares)) == (
        "the busiest links are x±, 11.1% of the step"
    )


def test_columns_that_are_the_same_all_along_have_a_number_and_uniform_panels_one() -> None:
    def percents(ax: object) -> int:
        texts = [text.get_text() for text in ax.texts]  # type: ignore[attr-defined]
        return sum(text.replace(".", "").removesuffix("%").isdigit() for text in texts)

    assert percents(plot_torus(gathered("v5e", "4x4", {"gather": ["y"]}))) == 2 * 3 + 3
    assert percents(plot_torus(gathered("v5e", "16x16", {"gather": ["y"]}))) == 1 + 3


@pytest.mark.parametrize(("shape", "blank"), [("4x4", True), ("16x16", False)])
def test_cells_without_a_link_are_explained_where_there_are_any(shape: str, blank: bool) -> None:
    texts = [
        text.get_text() for text in plot_torus(gathered("v5e", shape, {"gather": ["y"]})).texts
    ]
    (said,) = (text for text in texts if text.startswith("busy share of the step"))
    assert ("; blank: no link there; nothing crosses x" in said) == blank


def test_the_matrix_says_that_its_bytes_are_sums_over_collectives() -> None:
    label = plot_axes(gathered("v5e", "4x4", {"gather": ["y"]})).get_xlabel()
    assert label.startswith("each collective's busiest links, summed")
