"""The figures of a sweep: what they show is what the table says."""

import pytest
from matplotlib.figure import Figure
from reports import time_scale
from search_spaces import MODEL, POD, space

from tpusim.base import TpusimError
from tpusim.report import mesh_heatmap_data, plot_mesh_heatmap, plot_ranking, ranking_data
from tpusim.sweeps import sweep


@pytest.fixture(scope="module")
def table():  # type: ignore[no-untyped-def]
    """A sweep with all three fates: the batch does not divide, or is too large for some."""
    given = space(placements="all", vary={"global_batch": [32, 7]})
    found = sweep(MODEL, given, POD, workers=1)
    found.loc[found["tensor"] == 16, "fits"] = False
    return found


def test_a_cell_is_the_best_over_the_rest(table) -> None:  # type: ignore[no-untyped-def]
    data = mesh_heatmap_data(table)
    assert data.xs == data.ys == (1, 2, 4, 8, 16)
    assert len(data.cells) == 15
    fitting = table[table["fits"]]
    for cell in data.cells:
        same = fitting[(fitting["fsdp"] == cell.x) & (fitting["tensor"] == cell.y)]
        assert cell.step_time_s == (same["step_time_s"].min() if len(same) else None)
    assert data.best is not None
    assert data.best.step_time_s == fitting["step_time_s"].min()


def test_a_cell_without_a_fitting_plan_says_what_it_needs(table) -> None:  # type: ignore[no-untyped-def]
    (cell,) = [cell for cell in mesh_heatmap_data(table).cells if cell.y == 16]
    needs = table[table["tensor"] == 16]["hbm_peak_bytes"].min()
    assert (cell.mfu, cell.need_bytes) == (None, needs)
    refused = mesh_heatmap_data(table[(table["global_batch"] == 7) & (table["tensor"] < 16)])
    assert refused.best is None
    assert all(cell.need_bytes is None for cell in refused.cells)
    texts = {text.get_text() for text in plot_mesh_heatmap(refused).texts}
    assert texts == {"refused"}


def test_the_map_marks_the_best(table) -> None:  # type: ignore[no-untyped-def]
    data = mesh_heatmap_data(table)
    ax = plot_mesh_heatmap(data, Figure().add_subplot(), "a title")
    bold = [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]
    assert data.best is not None
    assert bold == [f"{data.best.mfu:.1%}"]
    assert len(ax.texts) == len(data.cells)
    assert (ax.get_xlabel(), ax.get_title(loc="left")) == ("fsdp [devices]", "a title")


def test_an_axis_that_the_sweep_does_not_have_is_told(table) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(
        TpusimError, match=r"the sweep has no axis 'tensr'; did you mean 'tensor'\?"
    ):
        mesh_heatmap_data(table, y="tensr")


def test_a_plan_is_ranked_once_with_its_placements_as_a_range(table) -> None:  # type: ignore[no-untyped-def]
    data = ranking_data(table, 6)
    times = [ranked.step_time_s for ranked in data]
    fitting = table[table["fits"]].groupby(["data", "fsdp", "tensor"])["step_time_s"]
    assert times == sorted(fitting.min())[:6]
    for ranked in data:
        assert (
            ranked.slowest_s
            == dict(zip(fitting.min(), fitting.max(), strict=True))[ranked.step_time_s]
        )
        assert sum(ranked.breakdown_s.values()) == pytest.approx(ranked.step_time_s)


def test_the_bars_are_as_long_as_the_steps(table) -> None:  # type: ignore[no-untyped-def]
    data = ranking_data(table, 3)
    ax = plot_ranking(data, Figure().add_subplot())
    ends: dict[int, float] = {}
    for patch in ax.patches:
        row = round(patch.get_y() + patch.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), patch.get_x() + patch.get_width())
    factor, _ = time_scale(data[0].step_time_s)
    assert [ends[row] / factor for row in range(3)] == pytest.approx([r.step_time_s for r in data])


def test_nothing_fits_is_an_empty_ranking(table) -> None:  # type: ignore[no-untyped-def]
    assert ranking_data(table[~table["fits"]]) == ()
    assert plot_ranking(()).get_title(loc="left") == "The fastest plans that fit"
