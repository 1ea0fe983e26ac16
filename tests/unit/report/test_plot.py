"""`ts.plot`: axes in, axes out, and what cannot be drawn is a sentence."""

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from cycler import cycler
from matplotlib import pyplot, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reports import figure_bytes

import tpusim as ts

OF_RESULTS = ("breakdown", "memory", "utilisation", "roofline", "torus", "axes")


@pytest.fixture(scope="module")
def plan() -> ts.Plan:
    return ts.Plan(mesh={"fsdp": 8, "tensor": 2}, seq_len=512, global_batch=32)


@pytest.fixture(scope="module")
def result(plan: ts.Plan) -> ts.PlanResult:
    return ts.simulate(ts.models.load("llama3-8b", layers=2), plan, "v5e-16")


@pytest.mark.parametrize("name", OF_RESULTS)
def test_a_figure_is_drawn_on_given_axes_or_on_its_own(name: str, result: ts.Result) -> None:
    draw = getattr(ts.plot, name)
    own = draw(result)
    assert isinstance(own, Axes)
    given = Figure().add_subplot()
    assert draw(result, ax=given) is given
    assert given.get_title(loc="left").split() == own.get_title(loc="left").split()
    assert getattr(ts.plot, f"{name}_data")(result)


def test_a_timeline_has_axes_for_each_window(result: ts.Result) -> None:
    windows = ts.plot.timeline_data(result)
    given = Figure().subplots(len(windows), 1, squeeze=False)[:, 0]
    assert ts.plot.timeline(result, axes=list(given)) == tuple(given)


def test_the_tables_of_sweeps_and_curves_are_drawn(plan: ts.Plan) -> None:
    model = ts.models.load("llama3-8b", layers=2)
    space = ts.Space(base=plan, axes=["fsdp", "tensor"])
    table = ts.sweep(model, space, ts.Slice("v5e", "4x4"), workers=1)
    curves = ts.scaling(model, plan, "v5e-16", chips=[8, 16])
    for draw, frame in (
        (ts.plot.ranking, table),
        (ts.plot.mesh_heatmap, table),
        (ts.plot.scaling, curves.table),
    ):
        given = Figure().add_subplot()
        assert draw(frame, ax=given) is given


def test_every_drawing_has_its_data() -> None:
    drawings = {name for name in ts.plot.__all__ if not name.endswith("_data")}
    assert {f"{name}_data" for name in drawings} | drawings == set(ts.plot.__all__)
    for name in drawings:
        assert {"ax", "axes"} & set(inspect.signature(getattr(ts.plot, name)).parameters)


def test_what_is_no_result_is_a_sentence(plan: ts.Plan) -> None:
    with pytest.raises(ts.TpusimError, match=r"draws a result, not a Plan; write ts\.plot\.mem"):
        ts.plot.memory(plan)


def test_matplotlib_loads_with_the_first_figure() -> None:
    code = "import tpusim as ts, sys; ts.plot.breakdown; print('matplotlib' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.thorough
def test_a_notebook_shows_figures_but_those_of_files(
    result: ts.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Figure] = []

    def figure(**keys: Any) -> Figure:
        shown.append(Figure(**keys))
        return shown[-1]

    shell = SimpleNamespace(get_ipython=lambda: "a shell", version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setattr(pyplot, "figure", figure)
    figure_bytes(result)
    assert not shown
    assert ts.plot.breakdown(result).figure is shown[0]


@pytest.mark.thorough
def test_files_look_the_same_whatever_matplotlib_is_told(result: ts.Result) -> None:
    """As with a user's matplotlibrc, which sets the same parameters."""
    usual = figure_bytes(result)
    told = {"figure.facecolor": "black", "font.size": 30, "axes.grid": True, "lines.linewidth": 9,
            "savefig.bbox": "tight", "figure.dpi": 300, "axes.prop_cycle": cycler(color="rgb"),
            "axes.titlelocation": "right", "figure.autolayout": True}  # fmt: skip
    with rc_context(told):
        assert figure_bytes(result) == usual
