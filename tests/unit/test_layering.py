"""The order of the packages: each imports only from the rows above its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpusim

ROOT = Path(tpusim.__file__).parent
ROWS = (
    {"errors", "phase"},
    {"units"},
    {"textfile"},
    {"hardware", "graph", "program"},
    {"network"},
    {"models", "partition", "costs", "xla"},
    {"engine"},
    {
        *("explain", "lines", "loads", "placing", "plan_result", "replay", "replay_result"),
        *("result", "simulation", "stages", "stage_table", "steps", "summary", "totals"),
        *("trips", "unused"),
    },
    {"search", "report", "validation", "runfile"},
    {"maxtext"},
    {"cli"},
    {"__main__"},
)
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}
FRONT_DOOR = ROWS[7]
"""One room: how a step is laid and run, its result, and how that prints, belong together."""

ROW |= {"": ROW["simulation"], "__version__": -1}
"""`import tpusim` reaches all that its front door names; the version is above everything."""

ROOMS = {
    "simpy": {"engine"},
    "matplotlib": {"report"},
    "jax": {"xla"},
    "jaxlib": {"xla"},
    "pandas": {"result", "search", "report", "validation"},
    "yaml": {"maxtext"},
    "pydantic": {"hardware", "models", "runfile"},
}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"tpusim.{package}" if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "tpusim":
                yield from (f"tpusim.{alias.name}" for alias in node.names)
            else:
                yield module


def breaches(source: str, package: str) -> list[str]:
    """What a module of `package` imports although it may not."""
    found = []
    for name in imported(ast.parse(source), package):
        root, _, rest = name.partition(".")
        if root == "tpusim":
            target = rest.partition(".")[0]
            together = target == package or {target, package} <= FRONT_DOOR
            if not together and ROW.get(target, len(ROWS)) >= ROW[package]:
                found.append(name)
        elif package not in ROOMS.get(root, {package}):
            found.append(name)
    return found


def modules() -> dict[str, Path]:
    files = [file for file in ROOT.rglob("*.py") if file.relative_to(ROOT) != Path("__init__.py")]
    return {str(file.relative_to(ROOT)): file for file in files}


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_imports_only_from_the_rows_above_it(name: str) -> None:
    package = name.removesuffix(".py").split("/")[0]
    assert package in ROW, f"{package} has no row; give it one"
    assert breaches(modules()[name].read_text("utf-8"), package) == []


@pytest.mark.parametrize(
    ("source", "package", "found"),
    [
        ("from tpusim.engine import run", "costs", ["tpusim.engine"]),
        ("import tpusim.partition", "program", ["tpusim.partition"]),
        ("from tpusim import hardware", "program", ["tpusim.hardware"]),
        ("def f():\n    import tpusim.costs", "hardware", ["tpusim.costs"]),
        ("from tpusim.models import Transformer", "partition", ["tpusim.models"]),
        ("import simpy", "costs", ["simpy"]),
        ("from matplotlib.figure import Figure", "result", ["matplotlib.figure"]),
        ("import pandas as pd", "engine", ["pandas"]),
        ("import tpusim", "costs", ["tpusim"]),
        ("import tpusim.novelty", "cli", ["tpusim.novelty"]),
        ("import tpusim", "report", []),
        ("from tpusim import __version__", "units", []),
        ("from tpusim.graph.products import Einsum", "partition", []),
        ("from .ops import Einsum", "graph", []),
        ("from simpy import Environment", "engine", []),
    ],
)
def test_the_rule_itself(source: str, package: str, found: list[str]) -> None:
    assert breaches(source, package) == found
