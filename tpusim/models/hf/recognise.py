"""The family of a config, or the reason that it cannot be simulated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpusim.base.close_names import did_you_mean
from tpusim.base.errors import ModelError
from tpusim.base.model_names import misspelt
from tpusim.base.value_checks import as_boolean
from tpusim.models.hf.families import (
    OPTIONAL_FEATURES,
    HfFamily,
    by_class,
    by_name,
    by_type,
    features,
    refused_as,
)
from tpusim.models.hf.json_file import shown

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Keys of the part of a config that has the language model, among an encoder of images or sound."""

_CROSS, _LINEAR = "cross-attention", "linear attention"
_INACTIVE = (None, False, 0, 1, "absolute", "vision")
"""Values with which the keys of features have no effect: one expert is an MLP, and tokens of images
alone may attend in both directions."""


def family_of(where: str, table: Mapping[str, Any], part: str = "") -> HfFamily:
    """Return the family that `architectures` and `model_type` of a config name.

    That is of its language model: a model that reads images or sound besides, and is of no family
    itself, is the one that its part names.

    where: the words that name the config in messages.
    table: its keys.
    part: the key of the part that has the language model; empty for none.

    Raise ModelError if the family is unknown or cannot be simulated yet, if the two disagree, and
    if keys ask for a feature that the family does not have.
    """
    name, kind = _architecture(where, table), _type(where, table)
    if name is None and kind is None:
        raise ModelError(
            f"{where}: neither architectures nor model_type says what the model is; {_known()}"
        )
    own_keys = keys = {**table, **table[part]} if part else table
    if part and _named(name, kind) is None and not any(refused_as(name, kind)):
        own = _architecture(where, table[part]), _type(where, table[part])
        if any(own):
            where, (name, kind), own_keys = f"{where}: {part}", own, table[part]
    _refuse(where, name, kind, keys)
    family = _family(where, name, kind, own_keys)
    _check_understood(where, family, own_keys)
    return family


def _architecture(where: str, table: Mapping[str, Any]) -> str | None:
    names = table.get("architectures")
    if not names and isinstance(names, list | None):
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ModelError(
            f'{where}: architectures is {shown(names)}; write a list, such as ["LlamaForCausalLM"]'
        )
    return names[0]


def _type(where: str, table: Mapping[str, Any]) -> str | None:
    kind = table.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise ModelError(f'{where}: model_type is {shown(kind)}; write text, such as "llama"')
    return kind


def _refuse(where: str, name: str | None, kind: str | None, keys: Mapping[str, Any]) -> None:
    """Raise ModelError for known features that cannot be simulated yet."""
    found = {
        what: f"{what} ({key} = {shown(keys[key])})"
        for what, key in _requested(features("unsupported"), keys)
    }
    known = _named(name, kind) or by_type().get(kind or "")
    what, near = ("", "") if known else refused_as(name, kind)
    if known is not None and known.linear:
        found.pop(_LINEAR, None)
    if known is not None:
        found = {
            w: said for w, said in found.items() if w != _CROSS or known.kind != "encoder-decoder"
        }
    elif what:
        found.setdefault(what, what)
    if found:
        family = known or by_name().get(near)
        raise ModelError(
            f"{where}: {name or kind!r} cannot be simulated yet, as it has "
            f"{' and '.join(found.values())}; {_nearest(family)}"
        )


def _named(name: str | None, kind: str | None) -> HfFamily | None:
    """Return the family of a class; the type chooses among families that share it."""
    of_type = by_type().get(kind or "")
    if name is None or (of_type is not None and name in of_type.architectures):
        return of_type
    return by_class().get(name)


def _known() -> str:
    """Return where the families that can be simulated are listed."""
    return f"docs/models.md lists the {len(by_name())} families that are, such as LlamaForCausalLM"


def _nearest(family: HfFamily | None) -> str:
    """Return the advice that names the nearest family, or where all of them are listed."""
    if family is None:
        return _known()
    return f"the nearest family is {family.name} ({family.architectures[0]})"


def _requested(
    asking: Mapping[str, Sequence[str]], keys: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the features that the keys ask for, each with its key."""
    for what, names in asking.items():
        for key in names:
            value = as_boolean(keys.get(key))
            if value is True or value not in _INACTIVE:
                yield what, key


def _reads(kind: str, keys: Mapping[str, Any]) -> str:
    """Return what a model reads but text, and what says so; empty if nothing does."""
    for what, key in _requested(features("reads"), keys):
        return f"{what} ({key} = {shown(keys[key])})"
    parts = set(kind.replace("-", "_").split("_"))
    named = [what for what, words in features("reads_by_name").items() if parts & set(words)]
    return f"{named[0]} (its type is {kind})" if named else ""


def _check_understood(where: str, family: HfFamily, keys: Mapping[str, Any]) -> None:
    """Raise ModelError for a key of a feature that only other families have."""
    has = {"experts": bool(family.experts), "latent attention": family.latent}
    for what, key in _requested(OPTIONAL_FEATURES, keys):
        if not has[what]:
            raise ModelError(
                f"{where}: {key} is {shown(keys[key])}, but {family.architectures[0]} has no "
                f"{what}; leave it out, or write the architecture that has them; {_known()}"
            )


def _misspelt(name: str, known: Iterable[str]) -> list[str]:
    """Return the class or type that is meant, by what is before its task (`ForCausalLM`)."""
    head, task = _head(name)
    heads = {_head(other)[0]: other for other in known if _head(other)[1] == task}
    return [heads[near] for near in misspelt(head, heads)][:1]


def _head(name: str) -> tuple[str, str]:
    """Return the name of a class without its task, and the task.

    >>> _head("LlamaForCausalLM")
    ('Llama', 'ForCausalLM')
    """
    head, mark, task = name.partition("For")
    return head, mark + task


def _family(where: str, name: str | None, kind: str | None, keys: Mapping[str, Any]) -> HfFamily:
    family = _named(name, kind)
    if family is None:
        said = f"architecture {name!r}" if name else f"model_type {kind!r}"
        if reads := _reads(kind or "", keys):
            raise ModelError(
                f"{where}: the {said} is no language model of a known family, as it reads "
                f"{reads}; {_known()}"
            )
        near = _misspelt(name or kind or "", by_class() if name else by_type())
        hint = f"{did_you_mean(near[:1])} " if near else ""
        asks = [
            f"{what} ({key} = {shown(keys[key])})"
            for what, key in _requested(OPTIONAL_FEATURES, keys)
        ]
        of = f", and so how it means its {' and '.join(asks)}" if asks else ""
        own = "" if near else "; if its layers are those of one, write that one's names"
        raise ModelError(f"{where}: the {said} is unknown{of}; {hint}{_known()}{own}")
    if kind is not None and kind not in family.types:
        raise ModelError(
            f"{where}: architectures says {name} and model_type {kind!r}; write "
            f"{' or '.join(repr(known) for known in family.types)} for {name}"
        )
    return family
