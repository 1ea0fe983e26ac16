"""The order of the packages: each imports only from the rows above its own.

And of the modules: none imports itself through others, and no two classes share a name.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import tpusim

ROOT = Path(tpusim.__file__).parent
ROWS = (
    {"base"},
    {"hardware", "graph", "program", "traffic"},
    {"accuracy", "network", "models", "plan", "failures"},
    {"partition", "costs", "compiler"},
    {"xla", "lowering", "engine", "profiles", "server"},
    {"frames"},
    {"pipeline"},
    {"results"},
    {"simulation"},
    {"bounds", "training", "serving", "export"},
    {"compiler_check"},
    {"report", "sweeps"},
    {"searches", "diagnosis"},
    {"runfile"},
    {"maxtext", "validation", "calibration"},
    {"cli"},
    {"__main__"},
)
ROW = {package: row for row, packages in enumerate(ROWS) for package in packages}
ROW |= {"": ROW["simulation"], "__version__": -1}
"""`import tpusim` reaches all that its front door names; the version is above everything."""

ROOMS = {
    "simpy": {"engine", "server"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "jax": {"compiler", "compiler_check", "export"},
    "jaxlib": {"compiler"},
    "optax": {"export"},
    "pandas": {
        *(
            "traffic",
            "profiles",
            "results",
            "sweeps",
            "searches",
            "report",
            "validation",
            "diagnosis",
        ),
    },
    "pyarrow": {"sweeps"},
    "distributed": {"sweeps"},
    "google": {"profiles"},
    "yaml": {"maxtext", "serving"},
    "pydantic": {"hardware", "models", "runfile"},
}


Named = ast.Import | ast.ImportFrom | ast.ClassDef


@cache
def named_by(source: str) -> tuple[Named, ...]:
    """The imports and classes of a module, wherever in it they stand."""
    return tuple(_named_by(ast.parse(source)))


def _named_by(part: ast.AST) -> Iterator[Named]:
    """Look at statements alone, as no expression has any, and most nodes are expressions."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(part, field, ())
        for node in inner if isinstance(inner, list) else ():
            if isinstance(node, Named):
                yield node
            yield from _named_by(node)


def imported(source: str, package: str) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it the import stands."""
    for node in named_by(source):
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
    for name in imported(source, package):
        root, _, rest = name.partition(".")
        if root == "tpusim":
            target = rest.partition(".")[0]
            if target != package and ROW.get(target, len(ROWS)) >= ROW[package]:
                found.append(name)
        elif package not in ROOMS.get(root, {package}):
            found.append(name)
    return found


@cache
def modules() -> dict[str, Path]:
    files = [file for file in ROOT.rglob("*.py") if file.relative_to(ROOT) != Path("__init__.py")]
    return {str(file.relative_to(ROOT)): file for file in files}


def test_every_package_has_a_row() -> None:
    assert {name.removesuffix(".py").split("/")[0] for name in modules()} <= set(ROW)


def test_each_module_imports_only_from_the_rows_above_it() -> None:
    found = {
        name: breaches(file.read_text("utf-8"), name.removesuffix(".py").split("/")[0])
        for name, file in modules().items()
    }
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "package", "found"),
    [
        ("from tpusim.engine import run", "costs", ["tpusim.engine"]),
        ("import tpusim.partition", "program", ["tpusim.partition"]),
        ("from tpusim import hardware", "program", ["tpusim.hardware"]),
        ("def f():\n    import tpusim.costs", "hardware", ["tpusim.costs"]),
        ("from tpusim.models import Transformer", "plan", ["tpusim.models"]),
        ("import simpy", "costs", ["simpy"]),
        ("from matplotlib.figure import Figure", "results", ["matplotlib.figure"]),
        ("import pandas as pd", "engine", ["pandas"]),
        ("import tpusim", "costs", ["tpusim"]),
        ("import tpusim.novelty", "cli", ["tpusim.novelty"]),
        ("import tpusim", "report", []),
        ("from tpusim import __version__", "base", []),
        ("from tpusim.graph.contractions import Einsum", "partition", []),
        ("from .ops import Einsum", "graph", []),
        ("from simpy import Environment", "engine", []),
    ],
)
def test_the_rule_itself(source: str, package: str, found: list[str]) -> None:
    assert breaches(source, package) == found


def dotted(path: str) -> str:
    """The name of the module in a file of the package."""
    return f"tpusim/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(source: str, known: set[str]) -> set[str]:
    """The modules among `known` that a module imports, whole or a name of, wherever in it."""
    found: set[str] = set()
    for node in named_by(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write the whole name of the module"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else str(node.module))
    return found & known


def in_order(sources: Mapping[str, str]) -> list[str]:
    """The modules, each after all that it imports; raises `CycleError` where there is no order."""
    graph = {name: imports_of(source, set(sources)) for name, source in sources.items()}
    return list(TopologicalSorter(graph).static_order())


def test_no_module_imports_itself_through_others() -> None:
    """Not even inside of a function, or for type checkers alone."""
    in_order({dotted(name): file.read_text("utf-8") for name, file in modules().items()})


def test_only_the_pass_manager_imports_passes_of_the_lowering() -> None:
    """What other modules of the lowering share with a pass stands beside them, not in it."""
    passes = ("lowering/passes/", "lowering/observed/")
    others = [n for n in modules() if n.startswith("lowering/") and not n.startswith(passes)]
    found = {
        name
        for name in others
        for each in imported(modules()[name].read_text("utf-8"), "lowering")
        if each.startswith("tpusim.lowering.passes")
    }
    assert found == {"lowering/pass_manager.py"}


@pytest.mark.parametrize(
    ("source", "circle"),
    [
        ("from tpusim.a.c import f", False),
        ("from tpusim.a.b import f", True),
        ("from tpusim.a import b", True),
        ("import tpusim.a.b", True),
        ("def f():\n    from tpusim.a.b import g", True),
        ("if TYPE_CHECKING:\n    from tpusim.a.b import g", True),
    ],
)
def test_the_rule_on_circles(source: str, circle: bool) -> None:
    sources = {"tpusim.a.b": "import tpusim.a.d", "tpusim.a.c": "", "tpusim.a.d": source}
    if circle:
        with pytest.raises(CycleError):
            in_order(sources)
    else:
        assert in_order(sources)[-1] == "tpusim.a.b"


def test_no_two_classes_have_the_same_name() -> None:
    """Of all modules, private ones too: a name says which class is meant."""
    names = Counter(
        node.name
        for file in modules().values()
        for node in named_by(file.read_text("utf-8"))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


STUBS = sorted(str(file.relative_to(ROOT)) for file in ROOT.rglob("__init__.pyi"))


def shadowed(stub: str) -> list[str]:
    """The names of a stub that a module beside it has too, which hides the name once it loads."""
    return [
        alias.name
        for node in named_by(stub)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.name == node.module.partition(".")[0]
    ]


@pytest.mark.parametrize("name", STUBS)
def test_no_name_that_loads_on_first_use_is_that_of_its_module(name: str) -> None:
    assert shadowed((ROOT / name).read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("stub", "found"),
    [
        ("from .trace import trace as trace", ["trace"]),
        ("from .trace.events import trace as trace", ["trace"]),
        ("from .step_trace import trace as trace", []),
        ("from . import plot as plot", []),
    ],
)
def test_the_rule_on_names_that_load_on_first_use(stub: str, found: list[str]) -> None:
    assert shadowed(stub) == found


@pytest.mark.parametrize("name", STUBS)
def test_every_name_that_loads_on_first_use_is_there(name: str) -> None:
    room = import_module(dotted(name.removesuffix("i")))
    assert [each for each in room.__all__ if not hasattr(room, each)] == []
