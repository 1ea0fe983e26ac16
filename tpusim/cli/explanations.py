"""The choices of `--explain`: tables that explain a simulated step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tpusim as ts
from tpusim.base.errors import PlanError, nearest


@dataclass(frozen=True, slots=True)
class Explanation:
    """A choice of `--explain`.

    table: from a result to the table, which prints with `str`.
    of_replays: False if the table needs the plan, which a replayed program does not have.
    """

    table: Callable[[Any], object]
    of_replays: bool = True


def _pass_table(result: Any) -> object:
    from tpusim.simulation.explain_passes import explain_passes

    return explain_passes(result)


def _convolution_table(result: Any) -> object:
    from tpusim.simulation.explain_convolutions import explain_convolutions_of

    return explain_convolutions_of(result)


EXPLANATIONS: Mapping[str, Explanation] = {
    "placement": Explanation(
        lambda result: ts.explain_placement(result.model, result.plan, result.pod), of_replays=False
    ),
    "collectives": Explanation(lambda result: ts.explain_collectives(result)),
    "pipeline": Explanation(lambda result: ts.explain_pipeline(result), of_replays=False),
    "lines": Explanation(lambda result: ts.explain_lines(result)),
    "passes": Explanation(_pass_table, of_replays=False),
    "convolutions": Explanation(_convolution_table),
    "advice": Explanation(lambda result: result.advice(quick=True)),
}
"""The choices of `simulate` and `replay`. A new one is one entry. Its function imports what it
needs when it is called, as the public names of `tpusim` do, so that `--help` stays fast."""


def explanations(*, replayed: bool = False) -> Mapping[str, Explanation]:
    """Return the choices for the result of a plan, or for that of a replayed program."""
    return {name: one for name, one in EXPLANATIONS.items() if one.of_replays or not replayed}


def find_explanation(name: str | None, *, replayed: bool = False) -> Explanation | None:
    """Return the choice that `--explain` names. Raise PlanError if there is none."""
    choices = explanations(replayed=replayed)
    if name is not None and name not in choices:
        raise PlanError(f"--explain is {name!r}: {nearest(name, choices)}")
    return None if name is None else choices[name]
