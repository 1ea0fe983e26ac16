"""The source of functions of the library, with all that they use."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from sys import stdlib_module_names

LIBRARY = Path(__file__).with_name("functions.py")
"""Functions in JAX. The file is read and not imported, as JAX need not be installed."""

MARKS = ("  # fmt: skip",)
"""Comments for this project's tools, which an exported file does without."""


def library_functions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the library among `names`, and those that they use, in its order."""
    definitions = _definitions()
    wanted, found = [name for name in names if name in definitions], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [used for used in _names(definitions[name]) if used in definitions]
    return tuple(name for name in definitions if name in found)


def functions_source(names: Iterable[str]) -> str:
    """Return the source of functions and constants of the library."""
    definitions = [_definitions()[name] for name in names]
    return "".join(f"{_space(node)}{_text(node)}\n" for node in definitions)


def _space(node: ast.stmt) -> str:
    return "\n\n" if isinstance(node, ast.FunctionDef) else "\n"


def library_constants(names: Iterable[str]) -> set[str]:
    """Return the constants that functions of the library use."""
    definitions = _definitions()
    return {n for n in library_functions(names) if not isinstance(definitions[n], ast.FunctionDef)}


def imports_of(source: str) -> str:
    """Return the library's imports of names that a source uses, Python's own in a block apart."""
    used = set(_names(ast.parse(source)))
    lines = [line for name, line in _imports().items() if name in used]
    own = [line for line in lines if line.split()[1].partition(".")[0] in stdlib_module_names]
    others = [line for line in lines if line not in own]
    return "\n".join([*own, *([""] if own else []), *others])


@cache
def _module() -> tuple[str, ast.Module]:
    text = LIBRARY.read_text("utf-8")
    return text, ast.parse(text)


@cache
def _definitions() -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in _module()[1].body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@cache
def _imports() -> dict[str, str]:
    """Return the import of each name that the library imports, in the library's order."""
    found = {}
    for node in _module()[1].body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tpusim."):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                one = ast.Import([alias])
                if isinstance(node, ast.ImportFrom):
                    one = ast.ImportFrom(node.module, [alias], 0)  # type: ignore[assignment]
                found[alias.asname or alias.name] = ast.unparse(ast.fix_missing_locations(one))
    return found


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _text(node: ast.stmt) -> str:
    lines = _module()[0].splitlines()[node.lineno - 1 : node.end_lineno]
    text = "\n".join(lines)
    for mark in MARKS:
        text = text.replace(mark, "")
    return text
