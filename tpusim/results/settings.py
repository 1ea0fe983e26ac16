"""Settings: changed keys of a run file, as texts that `--set` takes."""

from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any

from tpusim.base.toml_text import toml


def setting(key: str, value: Any, section: str = "plan") -> str:
    """Return a key of a plan, or of another section, and its value as `--set` takes them.

    >>> setting("mesh", {"fsdp": 8, "tensor": 2}), setting("offload_optimizer", True)
    ('plan.mesh={ fsdp = 8, tensor = 2 }', 'plan.offload_optimizer=true')
    """
    return f"{section}.{key}={toml(value)}"


def settings_of(keys: Mapping[str, Any], section: str = "plan") -> tuple[str, ...]:
    """Return the setting of each key of a section."""
    return tuple(setting(key, value, section) for key, value in keys.items())


def command_line(settings: Iterable[str]) -> str:
    """Return settings as words of a command line, quoted for a shell where they have to be.

    >>> command_line(['plan.remat="full"', "plan.microbatches=2"])
    '--set \\'plan.remat="full"\\' --set plan.microbatches=2'
    """
    return " ".join(f"--set {quote(setting)}" for setting in settings)
