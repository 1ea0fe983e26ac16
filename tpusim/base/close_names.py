"""Names that a misspelt one may stand for, and lists of names in messages."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

MOST_CLOSE, MOST_LONGER = 2, 4
"""Names that are offered for a misspelling, and for an abbreviation."""

LEAST_PREFIX = 3
"""Letters of an abbreviation, at least."""

MOST_TYPOS = 3
LETTERS_PER_TYPO = 3
LEAST_ALIKE = 0.6
"""The share of letters that two names have in common in their order, at least."""

LONGEST_LIST = 180
"""Characters of a list of names."""

_SEPARATORS = re.compile(r"[\s_./-]+")
_DIGIT, _DIGITS = re.compile(r"\d"), re.compile(r"\d+")


def close_names(name: str, valid: Iterable[str]) -> list[str]:
    """Return the valid names that `name` is a misspelling or an abbreviation of, the nearest first.

    A misspelling has a few letters more, fewer, exchanged or swapped: one for three letters of the
    name (of three letters none is exchanged), and at most three. What is only the nearest of all is
    none, and nor is another number where names differ in their numbers only, as versions and sizes
    do.

    >>> close_names("fdsp", ["fsdp", "tensor"]), close_names("steps", ["style", "seed"])
    (['fsdp'], [])
    >>> close_names("gemma4-12b", ["gemma3-12b", "gemma3-4b"]), close_names("int9", ["int8", "fp8"])
    ([], ['int8'])
    """
    names = sorted(set(valid))
    bare = {each: _bare(each) for each in names}
    asked = _bare(name)
    if same := [each for each in names if bare[each] == asked]:
        return same[:MOST_CLOSE]
    near = get_close_matches(asked, bare.values(), n=2 * MOST_CLOSE, cutoff=LEAST_ALIKE)
    ranked = [each for other in dict.fromkeys(near) for each in names if bare[each] == other]
    found = [each for each in ranked if _is_typo(asked, bare[each], bare.values())]
    found.sort(key=lambda each: (_distance(asked, bare[each]), -_alike(asked, bare[each]), each))
    if not found and len(asked) >= LEAST_PREFIX:
        short = abbreviated(name, names)
        long = [each for each in ranked if _is_longer(name, each)]
        return (short if len(short) <= MOST_LONGER else []) or long[:MOST_CLOSE]
    return found[:MOST_CLOSE]


def abbreviated(name: str, valid: Iterable[str]) -> list[str]:
    """Return the valid names that begin with `name`, or have it as one of their words, sorted.

    >>> abbreviated("llama", ["llama2-7b", "llama2-13b", "palm-8b"])
    ['llama2-13b', 'llama2-7b']
    """
    asked = _bare(name)
    if len(asked) < LEAST_PREFIX:
        return []
    return [each for each in sorted(set(valid)) if _abbreviates(asked, each)]


def listed(names: Sequence[str], like: str = "") -> str:
    """Return names with commas between them, cut where they are long: `a, b and 37 more`.

    like: a name; of a list that is cut, those that share a word with it come first.
    """
    whole = ", ".join(names)
    if len(whole) <= LONGEST_LIST:
        return whole
    words = {word for word in _SEPARATORS.split(like.lower()) if len(word) >= LEAST_PREFIX}
    ordered = sorted(names, key=lambda each: words.isdisjoint(_SEPARATORS.split(each.lower())))
    kept, length = 0, 0
    while kept < len(ordered) - 1 and length + len(ordered[kept]) <= LONGEST_LIST:
        length += len(ordered[kept]) + 2
        kept += 1
    kept = max(kept, 1)
    return f"{', '.join(ordered[:kept])} and {len(ordered) - kept} more"


def joined(words: Iterable[object], conjunction: str = "and") -> str:
    """Return words as a sentence lists them: `a, b and c`.

    >>> joined("abc"), joined(["v5e", "v5p"], "or"), joined(["v4"])
    ('a, b and c', 'v5e or v5p', 'v4')
    """
    *others, last = map(str, words)
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def did_you_mean(names: Iterable[str]) -> str:
    """Return the question that offers names: `did you mean 'v5e' or 'v5p'?`."""
    return f"did you mean {joined(map(repr, names), 'or')}?"


def _bare(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())


def _is_typo(asked: str, valid: str, names: Collection[str]) -> bool:
    """Return True if a name is a misspelling of a valid one, which is one of `names`."""
    digits = (sorted(_DIGIT.findall(each)) for each in (asked, valid))
    alike = sum(_DIGITS.sub("0", each) == _DIGITS.sub("0", valid) for each in names)
    if alike > 1 and next(digits) != next(digits):
        return False
    longest = max(len(asked), len(valid))
    if longest <= LETTERS_PER_TYPO and len(asked) == len(valid) and sorted(asked) != sorted(valid):
        return False  # of three letters an exchanged one is a third
    allowed = max(1, longest // LETTERS_PER_TYPO)
    return _distance(asked, valid) <= min(MOST_TYPOS, allowed)


def _abbreviates(asked: str, valid: str) -> bool:
    """Return True if a name begins a valid one, or is one of its words."""
    return _bare(valid).startswith(asked) or asked in _SEPARATORS.split(valid.lower())


def _is_longer(name: str, valid: str) -> bool:
    """Return True if `name` is a valid one with letters after it, and no word or number more."""
    rest = name.lower().removeprefix(valid.lower())
    return len(rest) < len(name) and rest.isalpha() and len(valid) >= LEAST_PREFIX


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _distance(one: str, other: str) -> int:
    """Return the letters to insert, delete, exchange or swap with the next (Damerau, Levenshtein).

    >>> _distance("fdsp", "fsdp"), _distance("steps", "style")
    (1, 3)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, last, row = row, before, [at]
        for place, its in enumerate(other, 1):
            best = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != its))
            if at > 1 and place > 1 and letter == other[place - 2] and one[at - 2] == its:
                best = min(best, last[place - 2] + 1)
            row.append(best)
    return row[-1]
