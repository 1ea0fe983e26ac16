"""The figures of a sweep: what they show is what the table says."""

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from extent import thorough
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
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
    assert ranking_data(table.iloc[:0]) == ()
    assert mesh_heatmap_data(table.iloc[:0]).cells == ()
    assert plot_ranking(()).get_title(loc="left") == "The fastest plans that fit"


NEEDED = ("fits", "placement", "step_time_s", "mfu", "hbm_peak_bytes", "fsdp", "tensor")
BAD_TABLES = [
    (lambda t: t.drop(columns="mfu"), "the column 'mfu' of the table is missing; give the table"),
    (lambda t: t.drop(columns="placement"), "the column 'placement' of the table is missing"),
    (lambda t: pd.concat([t, t["fits"]], axis=1), "the column 'fits' of the table is twice"),
    (lambda t: t.assign(mfu="fast"), "row 1 of the table has 'fast' in the column 'mfu'; write a"),
    (lambda t: t.assign(step_time_s=np.nan), "has nan in the column 'step_time_s'; write a number"),
    (lambda t: t.assign(step_time_s=0.0), "has 0.0 in the column 'step_time_s'; write a number ab"),
    (lambda t: t.assign(mfu=np.inf), "has inf in the column 'mfu'; write a number above 0, as the"),
    (lambda t: t.assign(fits="perhaps"), "has 'perhaps' in the column 'fits'; write true or false"),
    (lambda t: [t], "a figure of a table is given"),
    (lambda t: None, "a figure of a table is given None"),
]


@pytest.mark.parametrize("plot", [plot_ranking, plot_mesh_heatmap])
@pytest.mark.parametrize(("change", "sentence"), BAD_TABLES)
def test_what_is_no_table_of_a_sweep_is_one_sentence(plot, change, sentence, table) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TpusimError) as error:
        plot(change(table))
    assert sentence in str(error.value)


def test_sizes_of_axes_are_whole_numbers(table) -> None:  # type: ignore[no-untyped-def]
    for size in (0, 1.5, np.inf, "x"):
        with pytest.raises(TpusimError, match="in the column 'fsdp'; write a"):
            plot_mesh_heatmap(table.assign(fsdp=size))


def test_a_table_that_was_stored_is_read(table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """As text alone, and with the types of pandas that have gaps."""
    table.to_csv(tmp_path / "sweep.csv", index=False)
    texts = pd.read_csv(tmp_path / "sweep.csv", dtype=str, keep_default_na=False)
    for stored in (texts, table.convert_dtypes()):
        assert mesh_heatmap_data(stored) == mesh_heatmap_data(table)
        steps = [ranked.step_time_s for ranked in ranking_data(stored)]
        assert steps == [ranked.step_time_s for ranked in ranking_data(table)]


def test_names_of_axes_are_not_mathematics(table) -> None:  # type: ignore[no-untyped-def]
    x, y = "$\\frac{$", "a$b$c"
    renamed = table.rename(columns={"fsdp": x, "tensor": y})
    for ax in (plot_mesh_heatmap(renamed, x=x, y=y), plot_ranking(renamed)):
        FigureCanvasAgg(ax.figure).draw()
        texts = ax.figure.findobj(Text)
        assert [text for text in texts if x in text.get_text()]
        assert not [text for text in texts if "$" in text.get_text() and text.get_parse_math()]


CELLS: tuple[Any, ...] = (
    *(np.nan, pd.NA, pd.NaT, None, "", "x", "1.5", "True", "\x1b[31m", "$\\frac{", -1, 0, 1e308),
    *(np.inf, -np.inf, 10**30, True, [1], {}, (), object, b"x", 1j, np.float32(2), "x" * 10_000),
)


@pytest.mark.parametrize("count", [12, thorough(500)])
def test_any_cell_is_drawn_or_refused_in_one_sentence(count, table) -> None:  # type: ignore[no-untyped-def]
    draw, refused = random.Random(count), list[str]()
    columns = [*table.columns, *NEEDED, *NEEDED]
    for _ in range(count):
        changed = table.head(20).astype(object)
        for _ in range(draw.randint(1, 3)):
            row, column = draw.randrange(len(changed)), draw.choice(columns)
            changed.iat[row, changed.columns.get_loc(column)] = draw.choice(CELLS)
        if draw.random() < 0.1:
            changed = changed.drop(columns=draw.choice(columns))
        plot = draw.choice((plot_ranking, plot_mesh_heatmap))
        try:
            FigureCanvasAgg(plot(changed).figure).draw()
        except TpusimError as error:
            refused.append(str(error))
    assert max(map(len, refused)) < 400
    assert not [sentence for sentence in refused if "\n" in sentence]
    assert count / 10 < len(refused) < count * 0.9
