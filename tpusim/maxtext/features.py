"""Features of MaxText that are not modelled, and the keys of its configs that ask for them.

A key of a small feature is noted (`noted.toml`), one of a feature that changes a step too much to
leave out is an error (`refused.toml`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tpusim.base.shipped_table import shipped_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that is not modelled.

    what: the feature, in words.
    keys: the keys that ask for it with another value than their default, and the defaults.
    instead: what to write instead; empty for the default of the key.
    needs: other keys, one of which is set too where there is the feature, or has the value after
        `=`; those that `&` joins, together. None if it does not depend on others.
    only_at: the one value that asks for it, if there is one.
    also_off: a value beside the default that does not, if there is one.
    """

    what: str
    keys: Mapping[str, Any]
    instead: str = ""
    needs: Sequence[str] = ()
    only_at: Any = None
    also_off: Any = None

    def asked_by(self, key: str, value: Any) -> bool:
        """Return True if a value of one of its keys asks for it."""
        if self.only_at is not None:
            return bool(value == self.only_at)
        return value != self.keys[key] and (self.also_off is None or value != self.also_off)


@cache
def noted() -> Mapping[str, Feature]:
    """Return the feature of each key that is noted."""
    return _by_key("noted")


@cache
def refused() -> Mapping[str, Feature]:
    """Return the feature of each key that is an error."""
    return _by_key("refused")


def _by_key(name: str) -> Mapping[str, Feature]:
    features = [Feature(**row) for row in shipped_table("maxtext", f"{name}.toml")["feature"]]
    return {key: feature for feature in features for key in feature.keys}
