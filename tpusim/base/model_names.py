"""Names of models: which of them are misspelt, and which are others of a family.

`lama2-7b` is a misspelling of `llama2-7b`, with the same numbers. `qwen2.5-7b` and `qwen3-8b` have
other numbers, and so are other models, however much alike the names are.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_NUMBER = r"\d+(?:\.\d+)?"
_ALIKE = 0.75
"""Least similarity of the letters of a misspelt name."""

_MOST = 6
"""Names of a family in a message."""


def nearest_model(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a clause that offers the model that is meant, or those of the family and `otherwise`.

    otherwise: what to do about a model that is not known.

    >>> nearest_model("lama2-7b", ["llama2-7b", "llama2-70b"], "write its dimensions")
    "did you mean 'llama2-7b'?"
    >>> nearest_model("gemma4-12b", ["gemma3-12b", "gemma4-31b"], "write its dimensions")
    'of gemma4 there is gemma4-31b; write its dimensions'
    >>> nearest_model("qwen2.5-7b", ["qwen3-8b"], "write its dimensions")
    'write its dimensions'
    """
    names = sorted(set(known))
    if near := misspelt(name, names):
        return f"did you mean {' or '.join(map(repr, near))}?"
    family = [other for other in names if family_of(other) == family_of(name)]
    if not family:
        return otherwise
    listed = ", ".join(family[:_MOST]) + (" and others" if len(family) > _MOST else "")
    return f"of {family_of(name)} there {'are' if family[1:] else 'is'} {listed}; {otherwise}"


def misspelt(name: str, known: Iterable[str], alike: float = _ALIKE) -> list[str]:
    """Return up to two names with the same numbers and nearly the same letters, the nearest first.

    Where one differs in case and separators alone, it is the only one.

    alike: least similarity of the letters, from 0 to 1.
    """
    letters, numbers = _parts(name)
    found = []
    for other in known:
        theirs, own = _parts(other)
        if own == numbers and theirs and letters:
            found.append((SequenceMatcher(None, letters, theirs).ratio(), other))
    best = sorted((share, other) for share, other in found if share >= alike)[::-1]
    return [other for share, other in best if share == 1.0 or best[0][0] < 1.0][:2]


def family_of(name: str) -> str:
    """Return the family of a model by its name: letters and the number behind them.

    >>> family_of("qwen2.5-7b"), family_of("bert-480b"), family_of("Llama-3-8B")
    ('qwen2.5', 'bert', 'llama')
    """
    found = re.match(rf"[a-z]+(?:{_NUMBER})?", name.lower())
    return found[0] if found else name.lower()


def _parts(name: str) -> tuple[str, list[str]]:
    """Return the letters of a name, without case and separators, and its numbers in order."""
    plain = name.lower()
    return re.sub(r"[^a-z]", "", plain), re.findall(_NUMBER, plain)
