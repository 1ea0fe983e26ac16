"""Reports of programs of thousands of distinct operations: short pages, and drawings that show."""

from html.parser import HTMLParser

import numpy as np
import pytest
from extent import thorough
from matplotlib.backends.backend_agg import FigureCanvasAgg
from replays import wide_replay
from reports import report_page

import tpusim as ts
from tpusim.results import ReplayResult


@pytest.fixture(
    name="wide", params=[2000, thorough(10_000)], ids=lambda count: str(count), scope="module"
)
def _wide(request: pytest.FixtureRequest) -> ReplayResult:
    return wide_replay(request.param)


@pytest.mark.thorough
def test_a_page_stays_short(wide: ReplayResult) -> None:
    page, opened = report_page(wide), list[str]()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: opened.append(tag)  # type: ignore[method-assign]
    parser.feed(page)
    assert len(opened) < 3000
    assert len(page) < 2_000_000
    assert "Sum: " in page


def test_the_core_is_seen_where_operations_are_narrower_than_a_line(wide: ReplayResult) -> None:
    """White edges of bars covered them from about a thousand on."""
    (ax,) = ts.plot.timeline(wide)
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].mean(-1)
    rows, columns = pixels.shape
    (left, lower), (right, upper) = ax.transData.transform([(0, 1.2), (ax.get_xlim()[1], 0.1)])
    core = pixels[rows - int(upper) : rows - int(lower), int(left) + 2 : int(right) - 2]
    assert core.size > columns
    assert (core > 240).mean() < 0.2
