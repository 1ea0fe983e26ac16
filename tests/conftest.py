"""Settings for all tests: what runs by default, and the same examples in every run.

`pytest` runs a sample of seeds, examples and cases, `pytest -m thorough` all of them (extent.py
says which), `pytest -m xla` what needs the TPU compiler and is not thorough, `pytest -m torch` and
`pytest -m tensorflow` what needs these too, and `pytest -m browser` what needs Chromium. Any other
expression is pytest's own, and a test that is named runs with all of its cases.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from extent import ALL_EXAMPLES, Extent
from hypothesis import settings
from once import SHARED

APART = "not (xla or torch or tensorflow or browser)"
SELECTED = {
    "": f"not thorough and {APART}",
    "thorough": f"thorough or {APART}",
    "xla": "xla and not thorough",
}

ADVICE = "tpusim.simulation.advice"

settings.register_profile("default", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=ALL_EXAMPLES)
settings.register_profile("dev", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("COLUMNS", None)  # readline exports it, and then text in pipes is folded
    expression = config.option.markexpr
    if not any("::" in arg for arg in config.args):
        expression = SELECTED.get(expression, expression)
    Extent.whole = "not thorough" not in expression
    profile = "thorough" if expression.startswith("thorough") else "default"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))
    config.option.markexpr = expression
    if not hasattr(config, "workerinput"):
        os.environ[SHARED] = tempfile.mkdtemp(prefix="tpusim-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SHARED, ""), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among all tests, which are kept: it takes a quarter of their seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def most_simulations(request: pytest.FixtureRequest) -> Iterator[int]:
    """No changes are simulated for the reasons of a step, except where a test is `advised`.

    Every summary and every document of a result has reasons, and simulating six changes takes
    several times as long as a small step. Under `-m thorough` all are simulated.
    """
    from tpusim.simulation.advice import reasons

    most = reasons.MOST_SIMULATIONS
    if request.config.option.markexpr == SELECTED["thorough"]:
        yield most
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reasons, "MOST_SIMULATIONS", 0)
        yield most


@pytest.fixture(scope="module")
def advised(most_simulations: int) -> Iterator[None]:
    """For the tests of a file that read the changes of reasons: they are simulated, as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{ADVICE}.reasons.MOST_SIMULATIONS", most_simulations)
        yield


@pytest.fixture
def unadvised(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what a report holds besides advice: simulating changes takes some seconds."""
    monkeypatch.setattr(f"{ADVICE}.reasons.MOST_SIMULATIONS", 0)
    for name in ("plan_changes", "machine_changes"):
        monkeypatch.setattr(f"{ADVICE}.single_changes.{name}", lambda *_, **__: iter(()))


@pytest.fixture
def undrawn(unadvised: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what a report holds besides figures and advice: drawing takes two seconds."""

    def write(canvas: Any, file: Any, **given: Any) -> None:
        file.write(b"figure")

    backends = "matplotlib.backends"
    layout = "tpusim.report.figures.axes_column.AxesColumn"
    monkeypatch.setattr(f"{layout}.execute", lambda layout, figure: None)
    monkeypatch.setattr(f"{backends}.backend_agg.FigureCanvasAgg.print_png", write)
    monkeypatch.setattr(f"{backends}.backend_svg.FigureCanvasSVG.print_svg", write)
