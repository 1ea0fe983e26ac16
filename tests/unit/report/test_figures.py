"""The figures: their data are those of the result, and nothing that is written is hidden."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from reports import COMPUTE_STYLES, FIGURES, LEVEL_COLUMNS, figure_bytes, styles

import tpusim as ts
from tpusim.base import Phase, TpusimError, format_bytes
from tpusim.program import Compute, Loop
from tpusim.report import (
    ReportFigure,
    memory_data,
    plot_axes,
    plot_memory,
    plot_roofline,
    plot_timeline,
    plot_torus,
    plot_utilisation,
    register_figure,
    roofline_data,
    timeline_data,
    utilisation_data,
)
from tpusim.report.figures.label_positions import cluster_points, number_ranges, place_labels
from tpusim.report.figures.timeline import short_name
from tpusim.results import COMPUTE_LABELS, Result

PLOTS = (plot_axes, plot_memory, plot_roofline, plot_timeline, plot_torus, plot_utilisation)


@cache
def result(lowering: str = "xla", layers: int = 5) -> Result:
    model = ts.models.Transformer(
        layers=layers, embed=4096, mlp=16384, heads=32, kv_heads=8, vocab=32000
    )
    plan = ts.Plan(mesh={"fsdp": 16, "tensor": 4}, seq_len=2048, global_batch=64, lowering=lowering)
    return ts.simulate(model, plan, ts.Slice("v5p", "4x4x4"))


def axes_of(drawn: Any) -> Sequence[Axes]:
    return drawn if isinstance(drawn, tuple) else (drawn,)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_a_figure_has_a_title_with_a_number_and_units_on_its_axes(plot: Any) -> None:
    axes = axes_of(plot(result()))
    title = axes[0].get_title(loc="left")
    assert title.startswith("transformer on v5p:4x4x4: ")
    assert any(letter.isdigit() for letter in title.partition(": ")[2])
    for ax in axes:
        assert "[" in ax.get_xlabel()


def shown(ax: Axes) -> list[Text]:
    """All texts that are drawn: matplotlib also keeps ticks beyond the ends of an axis."""
    texts = [text for text in ax.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_major_ticks():
            if not low <= tick.get_loc() <= high:
                texts = [text for text in texts if text not in (tick.label1, tick.label2)]
    return [text for text in texts if text.get_text().strip()]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_no_text_is_cut_off_and_none_lies_on_another(plot: Any, lowering: str) -> None:
    axes = axes_of(plot(result(lowering)))
    figure = axes[0].figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    whole = figure.bbox
    for ax in axes:
        boxes = {text: text.get_window_extent() for text in shown(ax)}
        for box in boxes.values():
            assert whole.x0 <= box.x0 < box.x1 <= whole.x1 + 1
            assert whole.y0 <= box.y0 < box.y1 <= whole.y1 + 1
        for (one, a), (other, b) in combinations(boxes.items(), 2):
            if "\n" in one.get_text() + other.get_text():
                continue  # a table keeps the first line of its text free for the head
            assert not a.padded(-1).overlaps(b.padded(-1)), (one.get_text(), other.get_text())


@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot is not plot_timeline])
def test_a_figure_is_drawn_where_one_wants_it(plot: Any) -> None:
    mine = Figure().add_subplot()
    assert plot(result(), mine) is mine
    assert mine.get_xlabel()


def test_the_timeline_is_drawn_where_one_wants_it() -> None:
    mine = list(Figure().subplots(2, 1))
    assert plot_timeline(result(), mine) == tuple(mine)


@pytest.mark.thorough  # by default two processes write one report (unit/cli/test_process.py)
def test_figures_are_the_same_bytes_each_time() -> None:
    one, other = figure_bytes(result()), figure_bytes(result())
    names = ("axes", "breakdown", "memory", "roofline", "timeline", "torus", "utilisation")
    assert list(one) == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    assert one == other


@pytest.fixture
def registered() -> Iterator[None]:
    """The registry is afterwards as it was."""
    before = dict(FIGURES)
    yield
    FIGURES.clear()
    FIGURES.update(before)


@pytest.mark.thorough
@pytest.mark.usefixtures("registered", "unadvised")
def test_a_figure_of_the_users_own_is_in_the_report(tmp_path: Path) -> None:
    def data(result: Result) -> float:
        return result.hbm_peak_bytes / result.hbm_bytes

    def plot(result: Result) -> Axes:
        ax = Figure().add_subplot()
        ax.bar(["HBM"], [data(result)])
        return ax

    register_figure("occupancy", data, plot)
    register_figure("never", data, plot, lambda result: False)
    ts.write_report(result(), tmp_path)
    assert (tmp_path / "occupancy.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "occupancy.svg").read_text("utf-8")
    assert (tmp_path / "breakdown.png").exists()
    assert not list(tmp_path.glob("never*"))


@pytest.mark.parametrize(
    ("name", "why"),
    [("memory", "there is a figure 'memory' already"), ("../mine", "cannot name a file")],
)
def test_a_figure_needs_a_name_of_its_own(name: str, why: str) -> None:
    with pytest.raises(TpusimError, match=why):
        register_figure(name, memory_data, plot_memory)
    assert FIGURES["memory"].plot is plot_memory


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)
def test_the_data_of_a_figure_are_the_same_each_time(figure: ReportFigure) -> None:
    assert repr(figure.data(result())) == repr(figure.data(result()))


def test_the_timeline_shows_one_layer_forward_and_one_backward() -> None:
    """Of wo_mlp, one matmul forward; backward, for its gradient, a ring of 16 devices."""
    forward, backward = timeline_data(result())
    assert forward.title == "one layer, forward"
    assert backward.title == "one layer, backward"
    assert {each.record.phase for each in forward.core if each.record} == {Phase.FORWARD}
    phases = {each.record.phase for each in backward.core if each.record}
    assert phases == {Phase.RECOMPUTE, Phase.BACKWARD}
    for window, matmul, times in ((forward, "wo_mlp", 1), (backward, "wo_mlp/dw/chunk", 16 / 2)):
        names = [each.record.name for each in window.core if each.record]
        assert sum(name.endswith(matmul) for name in names) == times


def test_a_loop_of_one_trip_is_shown_whole() -> None:
    forward, backward = timeline_data(result(layers=1))
    assert forward.title == "one layer, forward"
    assert forward.end_ps < backward.start_ps


def test_utilisation_has_each_direction_of_each_dimension() -> None:
    rows = [row.resource for row in utilisation_data(result())]
    assert rows == [
        "core computes", "core communicates", "hbm",
        *(f"ici:{dimension}{way}" for dimension in "xyz" for way in "+-"), "pcie-",
    ]  # fmt: skip


def test_memory_names_who_holds_the_peak() -> None:
    use = memory_data(result())
    assert sum(use.held.values()) == use.peak_bytes == result().hbm_peak_bytes
    assert max(level for _, level in use.levels) == use.peak_bytes
    ax = plot_memory(result())
    legend = ax.get_legend()
    assert legend is not None
    text = "\n".join(text.get_text() for text in (*ax.texts, *legend.get_texts()))
    assert all(category in text for category in use.held)
    assert f"usable {format_bytes(result().hbm_bytes)}" in text


def test_the_stack_is_the_level_at_the_highest_moment_of_each_part() -> None:
    """Against every level of the step, and at the peak against what holds it."""
    use = memory_data(result())
    sums = [sum(held) for held in zip(*use.stacks.values(), strict=True)]
    assert len(sums) == LEVEL_COLUMNS
    width = use.end_s / LEVEL_COLUMNS
    for column, top in enumerate(sums):
        start, end = column * width, (column + 1) * width
        before = [level for time, level in use.levels if time < start + 1e-12]
        inside = [level for time, level in use.levels if start < time < end]
        assert top == max([*before[-1:], *inside])
    peak = sums.index(max(sums))
    held = {name: column[peak] for name, column in use.stacks.items() if column[peak]}
    assert held == {name: nbytes for name, nbytes in use.held.items() if nbytes}
    assert max(sums) == use.peak_bytes


def test_the_roofline_has_the_largest_operations_below_their_roofs() -> None:
    data = roofline_data(result())
    assert len(data.points) == 12
    assert (data.peak_flops, data.hbm_bandwidth) == (459e12, 2765e9)
    seconds = [point.seconds for point in data.points]
    assert seconds == sorted(seconds, reverse=True)
    assert all(0 < data.reached(point) <= 1 for point in data.points)


def test_the_roof_is_that_of_the_fastest_dtype() -> None:
    plan = result().plan.replace(matmul_dtype="int8")
    data = roofline_data(ts.simulate(result().model, plan, result().pod))
    assert (data.peak_flops, data.dtype) == (918e12, "int8")
    assert any(data.peak_flops / 2 < point.flops_per_s for point in data.points)
    assert all(0 < data.reached(point) <= 1 for point in data.points)


def test_a_point_is_its_flops_over_its_bytes_and_its_time() -> None:
    point = next(p for p in roofline_data(result(), 99).points if p.name == "layer/wo_mlp")
    loop = next(op for op in result().program.body if isinstance(op, Loop))
    op = next(op for op in loop.body if op.name == "layer/wo_mlp")
    assert isinstance(op, Compute)
    tokens, embed, mlp = 2048 * 64 / 16, 4096, 16384 / 4
    flops = 2 * tokens * embed * mlp
    assert point.count == 5
    assert point.intensity == pytest.approx(flops / (op.work.read_bytes + op.work.write_bytes))
    assert point.flops_per_s == pytest.approx(5 * flops / point.seconds)


@pytest.mark.parametrize(
    ("intensity", "roof"), [(1.0, 10.0), (5.0, 50.0), (10.0, 100.0), (1e6, 100.0)]
)
def test_the_roof_is_the_lower_of_two(intensity: float, roof: float) -> None:
    from reports import Roofline

    assert Roofline((), 100.0, 10.0).roof(intensity) == roof


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([1], "1"), ([1, 2], "1, 2"), ([1, 2, 3], "1–3"), ([1, 3, 4, 5, 9], "1, 3–5, 9")],
)
def test_numbers_that_follow_one_another_are_a_range(numbers: list[int], text: str) -> None:
    assert number_ranges(numbers) == text


def test_points_that_are_close_share_a_label_and_labels_stay_apart() -> None:
    where = [(50.0, 50.0), (52.0, 49.0), (62.0, 50.0), (200.0, 50.0)]
    assert cluster_points(where) == [[1, 2], [3], [4]]
    placed = {text: (where[first - 1], shift) for first, text, shift in place_labels(where, 300.0)}
    assert placed["4"][1] == (0, -12)
    assert placed["1, 2"][1] != placed["3"][1] or abs(50.0 - 62.0) > 20
    left = {
        text: shift[0] for _, text, shift in place_labels([(200.0, 50.0), (200.0, 41.0)], 203.0)
    }
    assert left["1"] < 0
    ((_, _, shift),) = place_labels([(200.0, 10.0)], 300.0)  # it would lie on the axis below
    assert shift[0] > 0 == shift[1]


def test_crowded_labels_do_not_touch() -> None:
    where = [(100.0 + 9 * at, 90.0) for at in range(7)]
    found = place_labels(where, 300.0)
    boxes = [
        (x + a - 2.6 * len(text), y + b - 5, x + a + 2.6 * len(text), y + b + 5)
        for first, text, (a, b) in found
        for x, y in [where[first - 1]]
    ]
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            assert (
                one[2] <= other[0]
                or other[2] <= one[0]
                or one[3] <= other[1]
                or (other[3] <= one[1])
            )


def test_what_is_on_the_chip_stands_at_the_edge_of_the_roofline() -> None:
    data = roofline_data(result())
    first = replace(data.points[0], intensity=1e12)
    with pytest.MonkeyPatch.context() as patch:
        changed = replace(data, points=(first, *data.points[1:]))
        patch.setattr("tpusim.report.figures.roofline.roofline_data", lambda _: changed)
        ax = plot_roofline(result())
    assert max(line.get_xdata()[0] for line in ax.lines) == data.farthest
    assert ax.get_xlim()[1] == 4 * data.farthest
    assert "data on the chip" in ax.get_xlabel()
    assert "data on the chip" not in plot_roofline(result()).get_xlabel()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("all-gather/bwd/layer/wk@fsdp again", "wk"),
        ("bwd/layer/wo_mlp/dw", "wo_mlp/dw"),
        ("all-reduce/bwd/d(layer/v)@tensor (+1)", "d(v)"),
        ("layer/wo/chunk/add", "wo/add"),
    ],
)
def test_names_on_bars_are_short(name: str, text: str) -> None:
    assert short_name(name) == text


def test_kinds_and_axes_differ_in_print_too() -> None:
    known = styles(
        ["fsdp", "slice skew", "matmul", "tensor", "vector", "attention", "dcn_data", "host"]
    )
    assert list(known)[-1] == "slice skew"
    assert list(known)[:3] == ["matmul", "attention", "vector"]
    assert len({(style.face, style.hatch) for style in known.values()}) == len(known)
    hatches = [known[axis].hatch for axis in ("fsdp", "tensor", "dcn_data", "host", "slice skew")]
    assert all(hatches)
    assert len(set(hatches)) == 5
    assert set(COMPUTE_STYLES) == set(COMPUTE_LABELS)
