"""The library of functions that exported steps are made of."""

import ast
from collections import Counter

from tpusim.export.library_source import LIBRARY


def test_no_name_is_defined_twice() -> None:
    """The library is looked up by name, so a second definition would replace the first."""
    defined = Counter(
        name
        for path in LIBRARY
        for node in ast.parse(path.read_text("utf-8")).body
        for name in _names_defined(node)
    )
    assert [name for name, times in defined.items() if times > 1] == []
    assert {"rms_norm", "layer_norm", "standardise", "main"} <= defined.keys()


def _names_defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
