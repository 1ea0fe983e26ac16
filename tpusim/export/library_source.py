"""The source of functions of the library, with all that they use."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from sys import stdlib_module_names

from tpusim.export.step_line import WIDTH

LIBRARY = tuple(
    Path(__file__).with_name("jax_library") / f"{name}.py"
    for name in (
        "layers", "training", "experts", "weight_dtypes", "pipelines", "muon", "frozen", "images",
        "regions", "boxes", "encoders", "serving",
    )
)  # fmt: skip
"""Functions in JAX. The files are read and not imported, as JAX need not be installed."""

STEP_CONSTANTS = Path(__file__).with_name("jax_library") / "step_constants.py"
"""The names that an exported file defines for the library."""

MARKS = ("  # fmt: skip", "  # type: ignore[untyped-decorator]")
"""Comments for this project's tools, which an exported file does without."""


@cache
def _statements() -> tuple[tuple[ast.stmt, str], ...]:
    """Return the statements of the library, each with its text."""
    found = []
    for text in (path.read_text("utf-8") for path in LIBRARY):
        lines = text.splitlines()
        for node in ast.parse(text).body:
            own = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            for mark in MARKS:
                own = own.replace(mark, "")
            found.append((node, own))
    return tuple(found)


@cache
def _definitions() -> dict[str, tuple[ast.stmt, str]]:
    """Return functions and constants by name, each with its text."""
    found: dict[str, tuple[ast.stmt, str]] = {}
    for node, text in _statements():
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node, text
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = node, text
    return found


def _is_function(name: str) -> bool:
    return isinstance(_definitions()[name][0], ast.FunctionDef)


@cache
def library_names() -> frozenset[str]:
    """Return the names of all functions of the library."""
    return frozenset(filter(_is_function, _definitions()))


@cache
def step_names() -> frozenset[str]:
    """Return all names of an exported file but functions and sizes: constants, types, imports."""
    own = ast.parse(STEP_CONSTANTS.read_text("utf-8")).body
    constants = {ast.unparse(node.target) for node in own if isinstance(node, ast.AnnAssign)}
    imported = {
        alias.asname or alias.name for names in _imports().values() for alias in names.values()
    }
    return frozenset({*_definitions(), *constants, *imported} - library_names() - {"VOCAB"})


def library_functions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the library among `names`, and those that they use, in its order."""
    definitions = _definitions()
    wanted, found = [name for name in names if name in definitions], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [used for used in _names(definitions[name][0]) if used in definitions]
    return tuple(name for name in definitions if name in found)


def library_constants(names: Iterable[str]) -> set[str]:
    """Return the constants that functions of the library use."""
    return {name for name in library_functions(names) if not _is_function(name)}


def functions_source(names: Iterable[str]) -> str:
    """Return the source of functions and constants of the library."""
    blank = {name: "\n\n" if _is_function(name) else "\n" for name in names}
    return "".join(f"{space}{_definitions()[name][1]}\n" for name, space in blank.items())


def imports_of(source: str) -> str:
    """Return the library's imports of names that a source uses, Python's own in a block apart."""
    used = names_in(source)
    blocks: tuple[list[str], list[str]] = [], []
    for module, aliases in _imports().items():
        kept = [alias for alias in aliases.values() if (alias.asname or alias.name) in used]
        if kept:
            foreign = (module or kept[0].name).partition(".")[0] not in stdlib_module_names
            blocks[foreign].extend(_import_lines(module, kept))
    return "\n\n".join("\n".join(sorted(block, key=_order)) for block in blocks if block)


def _imports() -> dict[str, dict[str, ast.alias]]:
    """Return the names that the library imports from each module, and from "" the modules.

    Those are not among them that an exported file defines.
    """
    found: dict[str, dict[str, ast.alias]] = {}
    for node, _ in _statements():
        module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.Import | ast.ImportFrom) and not module.startswith("tpusim."):
            found.setdefault(module, {}).update((alias.name, alias) for alias in node.names)
    return found


def _import_lines(module: str, names: list[ast.alias]) -> list[str]:
    """Return the imports of names from a module: on one line, unless it would be too long."""
    if not module:
        return [ast.unparse(ast.Import([name])) for name in names]
    line = ast.unparse(ast.ImportFrom(module, names, 0))
    if len(line) <= WIDTH:
        return [line]
    return [ast.unparse(ast.ImportFrom(module, [name], 0)) for name in names]


def _order(line: str) -> tuple[bool, str]:
    """Return the key by which imports are sorted: modules first, then names of modules."""
    return line.startswith("from"), line


def names_in(source: str) -> set[str]:
    """Return the names that a source uses; what stands in its literals are none."""
    return set(_names(ast.parse(source)))


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
