"""The keys of YAML configs, those of their `base_config` first.

Only plain data is built (PyYAML's safe loader); a key that is written twice is an error, where YAML
readers take the last one.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tpusim.base.errors import FileError, blame
from tpusim.base.shown_value import cut, shown
from tpusim.base.text_files import read_text

BASE_KEY = "base_config"
_INSTEAD = "the path of a MaxText config, or defaults for MaxText's own"
MAX_BASE_CONFIGS = 8


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses keys that are written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of a node."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise FileError(f"{cut(key.value)!r} stands twice (line {line}); remove one")
            seen.add(str(key.value))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def read_config(path: Path, depth: int = 0) -> Mapping[str, Any]:
    """Return the keys of a config over those of the config that its `base_config` names.

    It is looked for beside the file, then one folder up, as MaxText looks in its folder of configs.
    A missing `base.yml` stands for the defaults that ship. Raise FileError with one sentence that
    names the file.
    """
    table = dict(_read(path))
    if BASE_KEY not in table:
        return table
    parent = table.pop(BASE_KEY)
    if not isinstance(parent, str) or not parent or depth == MAX_BASE_CONFIGS:
        deep = (
            f"is more than {MAX_BASE_CONFIGS} configs deep"
            if depth == MAX_BASE_CONFIGS
            else f"is {shown(parent)}"
        )
        raise FileError(f"{path}: {BASE_KEY} {deep}; write the path of a config, such as base.yml")
    beside = path.parent / parent
    above = beside if beside.is_file() else path.parent.parent / parent
    if not above.is_file():
        if above.name == "base.yml":
            return table
        raise FileError(
            f"{path}: {BASE_KEY} is {shown(parent)}, but there is no such file beside it or one "
            "folder up; write the path of a config, or base.yml for MaxText's own"
        )
    return {**read_config(above, depth + 1), **table}


def _read(path: Path) -> Mapping[str, Any]:
    with blame(str(path)):
        found = parse(read_text(path, "a MaxText config", _INSTEAD))
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise FileError("no table of keys; write lines such as base_emb_dim: 4096")
        return found


def parse(text: str) -> Any:
    """Return the data of a YAML text. Raise FileError with one sentence if it is none."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise FileError(f"not valid YAML{where}: {error.problem}; write key: value") from error
    except yaml.YAMLError as error:
        raise FileError(f"not valid YAML: {cut(str(error))}; write key: value") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise FileError("a value or a nesting cannot be read; write a shorter one") from error
