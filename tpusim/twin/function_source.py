"""The source of functions of the library, with all that they use."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from sys import stdlib_module_names

LIBRARY = tuple(
    Path(__file__).with_name(name)
    for name in ("functions.py", "weight_functions.py", "pipeline_functions.py")
)
"""Functions in JAX. The files are read and not imported, as JAX need not be installed."""

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
    blocks: tuple[list[str], list[str]] = [], []
    for node in _imports():
        kept = [alias for alias in node.names if (alias.asname or alias.name) in used]
        used -= {alias.asname or alias.name for alias in kept}
        if kept:
            text = ast.unparse(_with_names(node, kept))
            blocks[text.split()[1].partition(".")[0] not in stdlib_module_names].append(text)
    return "\n\n".join("\n".join(sorted(block, key=_place)) for block in blocks if block)


def _place(text: str) -> tuple[bool, str]:
    """Return the place of an import among others: modules first, then names from modules."""
    kind, module, *_ = text.split()
    return kind == "from", module


@cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    texts = [file.read_text("utf-8") for file in LIBRARY]
    return tuple((text, ast.parse(text)) for text in texts)


def _statements() -> Iterator[ast.stmt]:
    return (node for _, module in _modules() for node in module.body)


@cache
def _definitions() -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in _statements():
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def _imports() -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the library's imports, but those of the names that an exported file defines."""
    for node in _statements():
        if isinstance(node, ast.Import):
            yield node
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("tpusim."):
            yield node


def _with_names(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    if isinstance(node, ast.Import):
        return ast.Import(names)
    return ast.ImportFrom(node.module, names, 0)


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _text(node: ast.stmt) -> str:
    whole = next(text for text, module in _modules() if node in module.body)
    lines = whole.splitlines()[node.lineno - 1 : node.end_lineno]
    text = "\n".join(lines)
    for mark in MARKS:
        text = text.replace(mark, "")
    return text
