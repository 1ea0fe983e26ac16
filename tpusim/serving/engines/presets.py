"""The presets of `engines.toml`: what each engine does by default, with kinds and sources."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shipped_table import shipped_table

KINDS = ("published", "derived", "measured", "fitted", "assumed", "unknown")

_HEADS = ("engine", "like", "version", "versions", "about")


class EngineFact(NamedTuple):
    """A default of an engine with its source.

    value: the default; seconds for host times.
    kind: one of `KINDS`; the value of an `unknown` one is a placeholder.
    """

    value: Any
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.value}, {self.kind}: {self.source}"


class Preset(NamedTuple):
    """A preset.

    name: of the preset.
    engine: its engine.
    version: the version that its values were read at.
    versions: others that it stands for.
    about: what it is, in words.
    facts: each default by its key.
    """

    name: str
    engine: str
    version: str
    versions: tuple[str, ...]
    about: str
    facts: Mapping[str, EngineFact]


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name."""
    table = shipped_table("serving", "engines/engines.toml")
    return {name: _preset(name, table) for name in table}


def engine_names() -> tuple[str, ...]:
    """Return the names of the presets.

    >>> engine_names()[:3]
    ('vllm-tpu', 'vllm-tpu-xla', 'sglang-jax')
    """
    return tuple(presets())


def preset_of(name: str, version: str = "") -> Preset:
    """Return the preset of an engine at a version; of a version that none lists, the first.

    name: an engine or a preset.

    Raise PlanError with the nearest names if there is none of this name.
    """
    known = presets()
    alike = [each for each in known.values() if name in (each.engine, *each.versions)]
    if version and (stated := [each for each in alike if version in each.versions]):
        return stated[0]
    if name in known or alike:
        return known[name] if name in known else alike[0]
    raise PlanError(f"no serving engine {name!r} is known; {nearest(name, known)}")


def _preset(name: str, table: Mapping[str, Mapping[str, Any]]) -> Preset:
    own = table[name]
    facts = {key: EngineFact(**each) for key, each in own.items() if key not in _HEADS}
    if like := own.get("like"):
        facts = {**_preset(like, table).facts, **facts}
    versions = tuple(own.get("versions", ()))
    return Preset(name, own["engine"], own["version"], versions, own["about"], facts)
