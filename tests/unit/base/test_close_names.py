"""Suggestions: every misspelling finds its name, and what is only the nearest of all is none."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from string import ascii_lowercase

import pytest
from commands import LONGEST_SENTENCE
from extent import thorough
from inputs import nearest

from tpusim.base.close_names import close_names, listed
from tpusim.base.foreign_names import our_names
from tpusim.hardware import chip_names
from tpusim.models import MODEL_KEYS, names
from tpusim.partition.rules import DEFAULT_RULES
from tpusim.plan import PLAN_KEYS

PLACES = {
    "plan": tuple(PLAN_KEYS.table),
    "model": tuple(MODEL_KEYS.table),
    "rules": tuple(DEFAULT_RULES),
    "models": names(),
    "chips": chip_names(),
}


def misspelt(name: str, random: Random) -> str:
    """The name with one letter more, fewer, exchanged or swapped with the next; its digits stay."""
    letters = [at for at in range(1, len(name)) if name[at].isalpha() and name[at - 1].isalpha()]
    at = random.choice(letters)
    new = random.choice(ascii_lowercase)
    return random.choice(
        (
            name[:at] + new + name[at:],
            name[:at] + name[at + 1 :],
            name[:at] + new + name[at + 1 :],
            name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :],
        )
    )


def misspellings(place: str, times: int) -> Iterator[tuple[str, str]]:
    random = Random(place)
    long = [name for name in PLACES[place] if sum(map(str.isalpha, name)) > 4]
    for name in long * times:
        if any(one.isalpha() and two.isalpha() for one, two in pairwise(name)):
            yield name, misspelt(name, random)


@pytest.mark.parametrize("place", ["plan", "model", "rules", "models"])
@pytest.mark.parametrize("times", [2, thorough(40)])
def test_one_typo_finds_the_name(place: str, times: int) -> None:
    valid = PLACES[place]
    lost = [
        (name, typed)
        for name, typed in misspellings(place, times)
        if typed not in valid
        and name not in (found := close_names(typed, valid))
        and len(found) < 2
    ]
    assert lost == []


@pytest.mark.parametrize("count", [300, thorough(5000)])
def test_words_at_random_are_no_misspelling(count: int) -> None:
    """Of letters drawn at random, one in a thousand at most looks like one of 400 names."""
    random = Random(count)
    drawn = [
        "".join(random.choices(ascii_lowercase, k=random.randint(5, 14))) for _ in range(count)
    ]
    hits = [word for word in drawn for valid in PLACES.values() if close_names(word, valid)]
    assert len(hits) <= count / 1000, hits


@pytest.mark.parametrize("place", PLACES)
def test_what_is_offered_shares_most_of_its_letters(place: str) -> None:
    """All of 300 foreign names: what is offered for one begins alike, or is a few letters off."""
    valid = PLACES[place]
    for name in our_names():
        for offered in close_names(name, valid):
            bare, asked = (one.replace("_", "").replace("-", "") for one in (offered, name))
            shared = sum(min(bare.count(letter), asked.count(letter)) for letter in {*bare})
            assert shared >= 0.6 * min(len(bare), len(asked)), (name, offered)


@pytest.mark.parametrize(
    ("name", "valid", "offered"),
    [
        ("gradient_accumulation_steps", PLACES["plan"], []),
        ("steps", ["style", "seed"], []),
        ("qwen3_5", ["qwen2", "qwen3", "qwen3_moe"], []),
        ("gemma4-12b", ["gemma3-12b", "gemma3-4b", "gemma4-31b"], []),
        ("v8p", ["v4", "v5e", "v6e"], []),
        ("git", ["vit", "bert"], []),
        ("compute_dtype", ["moment_dtype", "reduce_dtype"], []),
        ("wv", ["q", "v"], ["v"]),
        ("seqlen", PLACES["plan"], ["seq_len"]),
        ("lion", ["adam", "muon"], []),
        ("maxtext-23b", ["maxtext-22b", "maxtext-32b"], ["maxtext-32b"]),
        ("dat", ["data", "fsdp"], ["data"]),
    ],
)
def test_examples(name: str, valid: list[str], offered: list[str]) -> None:
    assert close_names(name, valid) == offered


@pytest.mark.parametrize("place", PLACES)
def test_a_clause_is_short_whatever_is_asked(place: str) -> None:
    for name in ("x" * 1000, "", "é\n", *our_names()):
        assert len(nearest(name, PLACES[place])) < LONGEST_SENTENCE - 100


def test_a_long_list_is_cut_with_what_is_like_the_name_first() -> None:
    text = listed(sorted(PLACES["plan"]), "loss_chunk")
    assert text.startswith("loss_dtype, loss_labels, ")
    kept, _, more = text.removesuffix(" more").partition(" and ")
    assert len(kept.split(", ")) + int(more) == len(PLACES["plan"])
    assert listed(["b", "a"]) == "b, a"
