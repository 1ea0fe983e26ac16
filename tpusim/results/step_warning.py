"""A loss of a step that follows from its sharding, and what to write against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tpusim.results.settings import setting

WarningKind: TypeAlias = Literal["repeated work", "padding", "resharding"]


@dataclass(frozen=True, slots=True)
class StepWarning:
    """A loss of a step, and what to write against it.

    share: of all matrix FLOPs, or of the step for `resharding`.
    text: the sentence, with what to write.
    keys: of the plan, with other values; empty where no change was found that is faster.
    what: the loss alone, in words.
    """

    kind: WarningKind
    share: float
    text: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    what: str = ""

    @property
    def settings(self) -> tuple[str, ...]:
        """The keys as `--set` takes them."""
        return tuple(setting(key, value) for key, value in self.keys.items())

    def facts(self) -> dict[str, Any]:
        """Return the warning as plain data."""
        return {
            "kind": self.kind,
            "share": self.share,
            "text": self.text,
            "settings": list(self.settings),
        }
