"""The room of axes: all of their texts are in the figure, and nothing is left beside them."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from replays import small_replay
from reports import draw_figures, new_figure

from tpusim.report.figures.axes_column import AXES_PADDING


def test_all_that_stands_around_the_axes_is_in_the_figure() -> None:
    for name, figure in draw_figures(small_replay()):
        FigureCanvasAgg(figure).draw()
        for ax in figure.axes:
            box = ax.get_tightbbox(for_layout_only=True)
            assert box is not None
            assert box.x0 >= -1, name
            assert box.y0 >= -1, name
            assert box.x1 <= figure.bbox.width + 1, name
            assert box.y1 <= figure.bbox.height + 1, name


def test_a_column_fills_its_figure_in_the_ratios_of_its_grid() -> None:
    figure = new_figure(6, 8)
    upper, lower = figure.subplots(2, 1, height_ratios=(1, 3))
    upper.set_title("two\nlines")
    lower.set_ylabel("a label")
    FigureCanvasAgg(figure).draw()
    first, second = (ax.get_window_extent() for ax in (upper, lower))
    assert second.height / first.height == pytest.approx(3)
    assert (first.x0, first.x1) == pytest.approx((second.x0, second.x1))
    above, below = (ax.get_tightbbox(for_layout_only=True) for ax in (upper, lower))
    pad = AXES_PADDING / 72 * figure.dpi
    assert figure.bbox.height - above.y1 == pytest.approx(pad, abs=1)
    assert above.y0 - below.y1 == pytest.approx(2 * pad, abs=1)
    assert below.y0 == pytest.approx(pad, abs=1)
    assert min(above.x0, below.x0) == pytest.approx(pad, abs=1)
    assert figure.bbox.width - max(above.x1, below.x1) == pytest.approx(pad, abs=1)


def test_a_second_look_moves_nothing() -> None:
    figure = new_figure(5, 3)
    ax = figure.add_subplot()
    ax.set_title("a title")
    FigureCanvasAgg(figure).draw()
    before = ax.get_position().bounds
    FigureCanvasAgg(figure).draw()
    assert ax.get_position().bounds == pytest.approx(before, abs=2e-3)
