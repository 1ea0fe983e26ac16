"""Names of models: which of them are misspelt, and which are others of a family.

`lama2-7b` is a misspelling of `llama2-7b`, with the same numbers. `qwen2.5-7b` and `qwen3-8b` have
other numbers, and so are other models, however much alike the names are.
"""

import re
from collections.abc import Iterable

from tpusim.base.close_names import close_names, did_you_mean

_NUMBER = r"\d+(?:\.\d+)?"
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
        return did_you_mean(near)
    family = [other for other in names if family_of(other) == family_of(name)]
    if not family:
        return otherwise
    listed = ", ".join(family[:_MOST]) + (" and others" if len(family) > _MOST else "")
    return f"of {family_of(name)} there {'are' if family[1:] else 'is'} {listed}; {otherwise}"


def misspelt(name: str, known: Iterable[str]) -> list[str]:
    """Return up to two names that `name` is a misspelling of.

    They have the same numbers in order, and `name` has no more words: `qwen2.5-vl-7b` is another
    model than `qwen2.5-7b`.
    """
    numbers, words = _parts(name)
    spelt = {other: _parts(other) for other in known}
    letters = "".join(words)
    alike = (
        other
        for other, (its, own) in spelt.items()
        if its == numbers and (len(words) <= len(own) or letters == "".join(own))
    )
    return close_names(name, alike)


def _parts(name: str) -> tuple[list[str], list[str]]:
    """Return the numbers and the words of a name, in order."""
    return re.findall(_NUMBER, name), re.findall("[a-z]+", name.lower())


def family_of(name: str) -> str:
    """Return the family of a model by its name: letters and the number behind them.

    >>> family_of("qwen2.5-7b"), family_of("bert-480b"), family_of("Llama-3-8B")
    ('qwen2.5', 'bert', 'llama')
    """
    found = re.match(rf"[a-z]+(?:{_NUMBER})?", name.lower())
    return found[0] if found else name.lower()
