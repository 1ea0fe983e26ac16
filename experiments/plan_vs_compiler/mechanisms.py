"""Print what the compiled programs of `twins.parquet` do, as tables: python mechanisms.py"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pandas as pd
from table import until_schedule

LEAST_PROGRAMS = 50
"""The fewest programs of a row."""

WEIGHTS = "weights"
KINDS = {
    **dict.fromkeys(("dispatched", "expert_out"), "slots of experts"),
    **dict.fromkeys(("out", "mlp_out", "layer_out", "mid", "q"), "activations"),
    **dict.fromkeys(("attn_norm", "mlp_norm", "final_norm"), "activations"),
}
"""Kinds of tensors by name, but for weights and the embedding."""

BATCH_AXES = {"data", "fsdp", "context", "expert"}

COPIES = {"data", "dcn_data"}
"""Axes along which devices hold the same weights; without them, weights are tiled over the mesh."""

WITHOUT_RINGS = ("v2", "v3")
"""Generations that are left out: the compiler makes no collective matmuls for them."""

WIDTHS = ((2, 32), (33, 256))
"""Devices of a group, by which rows are told apart: rings of weights end at 32."""

LEAST_SHARE = 0.1
"""The smallest share of a row's bytes that is shown."""


@dataclass
class Seen:
    """What programs do with one kind of tensor: programs, and the bytes that devices receive."""

    programs: set[int] = field(default_factory=set)
    carried: Counter[str] = field(default_factory=Counter)


def rows(table: pd.DataFrame) -> Mapping[tuple[str, ...], Seen]:
    """Return what was seen by tensor, pass, axes and width of the group, in this order."""
    found: defaultdict[tuple[str, ...], Seen] = defaultdict(Seen)
    for twin in table[~table.generation.isin(WITHOUT_RINGS)].to_dict("records"):
        mesh = json.loads(twin["plan"])["mesh"]
        for each in json.loads(twin["facts"])["collectives"]:
            axes, program = each["axes"], each["program"]
            if not program or not axes or not set(axes) <= set(mesh):
                continue
            kind, width = _kind(each["what"]), _width(prod(mesh[axis] for axis in axes))
            if kind == WEIGHTS:
                kind += ", replicated" if COPIES & set(mesh) else ", tiled"
            if kind and width:
                seen = found[kind, each["when"], _axes(axes), width]
                seen.programs.add(int(twin["number"]))
                seen.carried.update(_shares(program))
    many = ((key, seen) for key, seen in found.items() if len(seen.programs) >= LEAST_PROGRAMS)
    return dict(sorted(many, key=lambda each: (*each[0][:3], _first(each[0][3]))))


def _kind(what: str) -> str:
    """Return the kind of a tensor by its name; empty for what is not in the tables."""
    name = what.rpartition("/")[2]
    if name == "embedding":
        return "embedding"
    if name == "head" or (name.startswith(("w", "expert_w")) and "_kernel" not in name):
        return WEIGHTS
    return KINDS.get(name, "")


def _axes(axes: list[str]) -> str:
    """Return the axes of a group: of the batch, of the slices, or by name."""
    if any(axis.startswith("dcn") for axis in axes):
        return "between slices"
    return "the batch's" if set(axes) <= BATCH_AXES else " and ".join(f"`{axis}`" for axis in axes)


def _width(devices: int) -> str:
    for low, high in WIDTHS:
        if low <= devices <= high:
            return f"{low}-{high}"
    return ""


def _first(width: str) -> int:
    return int(width.partition("-")[0])


def _shares(traffic: Mapping[str, Any]) -> Counter[str]:
    """Return what a program does with a tensor, and the shares of its bytes; they sum to 1."""
    modes, kinds = traffic["modes"], dict(traffic["kinds"])
    whole = sum(modes.values()) or 1.0
    found: Counter[str] = Counter()
    if ring := modes.get("ring", 0.0):
        found["ring"] = ring / whole
        kinds.pop("collective-permute", None)
    rest = sum(kinds.values()) or 1.0
    for mode, nbytes in modes.items():
        if mode != "ring":
            found.update({f"{kind} {mode}": nbytes / whole * n / rest for kind, n in kinds.items()})
    return found


def markdown() -> str:
    """Return the table: what is moved, in which pass, over what, and how, as shares of programs."""
    lines = [
        "| what | pass | axes | devices | programs | how |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    for (kind, when, axes, width), seen in rows(until_schedule()).items():
        total = sum(seen.carried.values())
        least = LEAST_SHARE * total
        shares = ((does, n / total) for does, n in seen.carried.most_common() if n >= least)
        how = ", ".join(f"{does} {share:.0%}" for does, share in shares)
        cells = (kind, when, axes, width, str(len(seen.programs)), how)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
