"""From a path to the keys of a YAML file, its `base_config` first, and a value as a message shows.

Only plain data is built (PyYAML's safe loader); a key that stands twice is a mistake, and not, as
YAML readers have it, the last one.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tpusim.errors import FileError, blame
from tpusim.textfile import read_text

PARENT = "base_config"
INSTEAD = "the path of a MaxText config, or defaults for MaxText's own"
DEEPEST = 8
_LONGEST = 60


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses keys that stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping of a node."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise FileError(f"{cut(key.value)!r} stands twice (line {line}); remove one")
            seen.add(str(key.value))
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def read_config(path: Path, depth: int = 0) -> Mapping[str, Any]:
    """The keys of a config and of the config that its `base_config` names, which it overrides.

    A `base.yml` that is not there stands for the defaults that we ship, as MaxText looks into its
    own configs for it. Raises `FileError` with one sentence that names the file.
    """
    table = dict(_read(path))
    if PARENT not in table:
        return table
    parent = table.pop(PARENT)
    if not isinstance(parent, str) or not parent or depth == DEEPEST:
        deep = f"is more than {DEEPEST} configs deep" if depth == DEEPEST else f"is {shown(parent)}"
        raise FileError(f"{path}: {PARENT} {deep}; write the path of a config, such as base.yml")
    above = path.parent / parent
    if not above.is_file():
        if above.name == "base.yml":
            return table
        raise FileError(
            f"{path}: {PARENT} is {shown(parent)}, but there is no such file beside it; write the "
            "path of a config, or base.yml for MaxText's own"
        )
    return {**read_config(above, depth + 1), **table}


def _read(path: Path) -> Mapping[str, Any]:
    with blame(str(path)):
        found = parse(read_text(path, "a MaxText config", INSTEAD))
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise FileError("no table of keys; write lines such as base_emb_dim: 4096")
        return found


def parse(text: str) -> Any:
    """What a YAML text says; `FileError` with one sentence where it is none."""
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


def shown(value: object) -> str:
    """A value as YAML writes it, cut short where it is long; lists and tables are only named."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        short = len(value) <= 3 and not any(isinstance(part, list) for part in value)
        return cut(f"[{', '.join(map(shown, value))}]") if short else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 80:
        return f"a number of {value.bit_length()} bits"
    return cut(repr(value) if isinstance(value, str) else str(value))


def cut(text: str) -> str:
    """The text, cut short where it is long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
