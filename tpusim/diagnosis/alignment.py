"""The parts of a measured and of a predicted step, side by side."""

import re
from collections.abc import Mapping
from itertools import combinations
from math import prod

import pandas as pd

from tpusim.compiler.to_program.op_metadata import phase_of, scope_of
from tpusim.diagnosis.kinds import COLLECTIVES, VECTOR
from tpusim.diagnosis.measured import MeasuredSteps
from tpusim.diagnosis.predicted import COLUMNS

ABOUT = ("kind", "axis", "phase", "scope", "line", "bound")
ORDERS = ("measured_order", "predicted_order")
TIMES = ("measured_ps", "predicted_ps", "difference_ps")

LEAST_KNOWN = 0.5
"""The fraction of a kind's time of which a profile knows the pass, from which it counts."""

SHORTEST_WORD = 3
"""Letters of a word that both sides have; `d`, `dx` and `dw` are no names of weights."""

_SEPARATORS = re.compile(r"[/()\s]+")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")


def measured_parts(steps: MeasuredSteps, mesh: Mapping[str, int]) -> pd.DataFrame:
    """Return the parts of the mean step, with `operation`, `layer`, `ABOUT` and `measured_ps`.

    mesh: axes and their sizes, which name the groups of collectives by their sizes.
    """
    parts, facts = steps.mean(), steps.facts
    named = [_phase(scope, bool(steps.transposed)) for scope in facts["scope"]]
    about = pd.DataFrame(
        {
            "axis": [
                _axis(text, mesh) if kind in COLLECTIVES else ""
                for text, kind in zip(facts["text"], facts["kind"], strict=True)
            ],
            "phase": named,
            "scope": facts["scope"].map(scope_of),
            "line": facts["source"],
            "bound": "",
        },
        index=facts.index,
    )
    return parts.join(about, on="operation").fillna(dict.fromkeys(about.columns, ""))


def _phase(scope: str, training: bool) -> str:
    return str(phase_of(scope, training) or "")


def _axis(text: str, mesh: Mapping[str, int]) -> str:
    """Return the axes of a collective's groups, if only these have groups of that size."""
    if not (found := _GROUPS.search(text)):
        return ""
    size = found[1].count(",") + 1 if found[1] else int(found[2])
    wide = sorted(axis for axis in mesh if mesh[axis] > 1)
    sets = (each for count in range(1, len(wide) + 1) for each in combinations(wide, count))
    fit = [axes for axes in sets if prod(mesh[axis] for axis in axes) == size]
    return ",".join(fit[0]) if len(fit) == 1 else ""


def by_instruction(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return one row per instruction and layer of a program and of its replay, with `TIMES`.

    What is known of an instruction is the replay's where it has it, or else the profile's.
    """
    predicted = _same_layers(measured, predicted)
    times = pd.merge(
        measured[["operation", "layer", "measured_ps", ORDERS[0]]],
        predicted[["operation", "layer", "predicted_ps", ORDERS[1]]],
        how="outer",
        on=["operation", "layer"],
        sort=False,
    )
    known = pd.concat([predicted, measured])[["operation", *ABOUT]].replace("", None)
    about = known.groupby("operation", sort=False)[[*ABOUT]].first().fillna("")
    return with_difference(times.join(about, on="operation"))


def _same_layers(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return predicted parts; those of one layer have the measured one if that is one too."""
    found = {}
    for side, parts in (("measured", measured), ("predicted", predicted)):
        layers = parts.groupby("operation")["layer"].agg(["nunique", "first"])
        found[side] = layers[layers["nunique"] == 1]["first"]
    one = predicted["operation"].isin(found["predicted"].index)
    layer = predicted["operation"].map(found["measured"])
    return predicted.assign(
        layer=layer.where(one & layer.notna(), predicted["layer"]).astype("int64")
    )


def side_by_side(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of a program and of a plan one below the other, with `TIMES`.

    The names of their operations are not the same: kind, axis, phase and layer align them.
    """
    return with_difference(pd.concat([measured, predicted[[*COLUMNS]]], ignore_index=True))


def shared_words(measured: pd.DataFrame, predicted: pd.DataFrame) -> set[str]:
    """Return the parts of scopes that both sides have, such as the names of weights."""
    sides = (
        {word for scope in parts["scope"].unique() for word in _SEPARATORS.split(scope)}
        for parts in (measured, predicted)
    )
    return {word for word in set.intersection(*sides) if len(word) >= SHORTEST_WORD}


def shared_word(parts: pd.DataFrame, words: set[str]) -> pd.Series:
    """Return the last of some words in the scope of each part; empty where it has none."""
    scopes = parts["scope"].unique()
    found = ([word for word in _SEPARATORS.split(scope) if word in words] for scope in scopes)
    last = {scope: each[-1] if each else "" for scope, each in zip(scopes, found, strict=True)}
    return parts["scope"].map(last)


def known_to_both(parts: pd.DataFrame) -> pd.DataFrame:
    """Return parts without pass, weight or axes in kinds of which the profile hardly knows them."""
    whole = parts.groupby("kind")["measured_ps"].sum()
    for column in ("phase", "axis", "of"):
        known = parts[parts[column] != ""].groupby("kind")["measured_ps"].sum()
        unknown = whole.index[known.reindex(whole.index, fill_value=0) < LEAST_KNOWN * whole]
        parts = parts.assign(**{column: parts[column].mask(parts["kind"].isin(unknown), "")})
    return parts


def shared_names(parts: pd.DataFrame) -> pd.Series:
    """Return what each part is in words that both sides have: pass, kind, weight (`of`), axes."""
    kinds = parts["kind"].replace(VECTOR, "vector work")
    names = parts["phase"] + " " + kinds + after(" of `{}`", parts["of"])
    return (names + after(" over {}", parts["axis"])).str.strip()


def after(text: str, names: pd.Series) -> pd.Series:
    """Return a text with each name; empty for an empty name."""
    return names.map({name: text.format(name) if name else "" for name in names.unique()})


def with_difference(parts: pd.DataFrame) -> pd.DataFrame:
    """Return parts with measured, predicted and difference as whole picoseconds."""
    times = {
        name: parts[name].fillna(0).astype("int64") if name in parts else 0 for name in TIMES[:2]
    }
    orders = {
        name: parts[name].fillna(-1).astype("int64") if name in parts else -1 for name in ORDERS
    }
    parts = parts.assign(**times, **orders)
    parts["difference_ps"] = parts["measured_ps"] - parts["predicted_ps"]
    return parts[["operation", "layer", *ABOUT, *TIMES, *ORDERS]]
