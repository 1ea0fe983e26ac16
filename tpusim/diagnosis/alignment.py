"""The parts of a measured and of a predicted step, side by side."""

import re
from collections.abc import Mapping
from itertools import combinations
from math import prod

import pandas as pd

from tpusim.compiler.to_program.op_metadata import phase_of, scope_of
from tpusim.diagnosis.kinds import COLLECTIVES, VECTOR
from tpusim.diagnosis.measured import MeasuredSteps

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
    training = bool(steps.transposed)
    axes = [
        _axis(text, mesh) if kind in COLLECTIVES else ""
        for text, kind in zip(facts["text"], facts["kind"], strict=True)
    ]
    about = pd.DataFrame(
        {
            "axis": axes,
            "phase": [str(phase_of(scope, training) or "") for scope in facts["scope"]],
            "scope": facts["scope"].map(scope_of),
            "line": facts["source"],
            "bound": "",
        },
        index=facts.index,
    )
    return parts.join(about, on="operation").fillna(dict.fromkeys(about.columns, ""))


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
    ours, theirs = (_only_layers(parts) for parts in (measured, predicted))
    layer = predicted["operation"].map(ours[ours.index.isin(theirs.index)])
    return predicted.assign(layer=layer.fillna(predicted["layer"]).astype("int64"))


def _only_layers(parts: pd.DataFrame) -> pd.Series:
    """Return the layer of each operation that has one alone."""
    layers = parts.groupby("operation")["layer"].agg(["nunique", "first"])
    return layers[layers["nunique"] == 1]["first"]


def operation_names(parts: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return parts with their line as `of`, and the operation that each is, in words."""
    names = parts["kind"] + " `" + parts["operation"] + "`" + _after(" ({})", parts["line"])
    return parts.assign(of=parts["line"]), names


def shared_names(parts: pd.DataFrame, every: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return parts with a weight as `of`, and what each is in words that both sides have.

    These are pass, kind, weight and axes: pass, weight and axes only in kinds of which the profile
    knows them. A weight is the last part of a scope that the scopes of both sides have in `every`.
    """
    scopes = (every.loc[every[side] >= 0, "scope"].unique() for side in ORDERS)
    sides = ({word for scope in each for word in _SEPARATORS.split(scope)} for each in scopes)
    words = {word for word in set.intersection(*sides) if len(word) >= SHORTEST_WORD}
    last = {
        scope: next((w for w in reversed(_SEPARATORS.split(scope)) if w in words), "")
        for scope in parts["scope"].unique()
    }
    parts = parts.assign(of=parts["scope"].map(last))
    whole = parts.groupby("kind")["measured_ps"].sum()
    for column in ("phase", "axis", "of"):
        known = parts[parts[column] != ""].groupby("kind")["measured_ps"].sum()
        unknown = whole.index[known.reindex(whole.index, fill_value=0) < LEAST_KNOWN * whole]
        parts = parts.assign(**{column: parts[column].mask(parts["kind"].isin(unknown), "")})
    names = parts["phase"] + " " + parts["kind"].replace(VECTOR, "vector work")
    names += _after(" of `{}`", parts["of"]) + _after(" over {}", parts["axis"])
    return parts, names.str.strip()


def _after(text: str, names: pd.Series) -> pd.Series:
    """Return a text with each name; empty for an empty name."""
    return names.map({name: text.format(name) if name else "" for name in names.unique()})


def with_difference(parts: pd.DataFrame) -> pd.DataFrame:
    """Return parts with measured, predicted and difference as whole picoseconds."""
    missing = dict.fromkeys(TIMES[:2], 0) | dict.fromkeys(ORDERS, -1)
    whole = {
        name: parts[name].fillna(least).astype("int64") if name in parts else least
        for name, least in missing.items()
    }
    parts = parts.assign(**whole)
    parts["difference_ps"] = parts["measured_ps"] - parts["predicted_ps"]
    return parts[["operation", "layer", *ABOUT, *TIMES, *ORDERS]]
