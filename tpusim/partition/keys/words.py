"""The keys of a plan that are one of several words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpusim.errors import PlanError, nearest
from tpusim.graph import POLICIES
from tpusim.partition.keys.dtypes import MATMUL_DTYPES, MATMULS, NARROW_DTYPES, WIDE_DTYPES
from tpusim.partition.keys.experts import DISPATCHES, EXCHANGES
from tpusim.partition.keys.pipeline import SCHEDULES

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

OPTIMIZERS = ("adam", "adafactor", "sgd")
LOWERINGS = ("xla", "ideal")
COLLECTIVES = ("xla", "best")
STYLES = ("plain", "maxtext")

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "remat": POLICIES,
    "optimizer": OPTIMIZERS,
    "lowering": LOWERINGS,
    "collectives": COLLECTIVES,
    "style": STYLES,
    "expert_exchange": EXCHANGES,
    **dict.fromkeys(("dtype", "param_dtype", "moment_dtype", "grad_dtype"), WIDE_DTYPES),
}

_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(MATMULS, MATMUL_DTYPES),
    "gather_dtype": (*WIDE_DTYPES, *NARROW_DTYPES),
    **dict.fromkeys(
        ("reduce_dtype", "accumulator_dtype", "second_moment_dtype", "loss_dtype"), WIDE_DTYPES
    ),
    "dispatch": DISPATCHES,
    "schedule": SCHEDULES,
}
"""The words that may be empty, and what else they may be."""


def check_words(plan: "Plan") -> None:
    """Raise PlanError for a word that is none of its key's."""
    for key, choices in {**_CHOICES, **_OPTIONAL}.items():
        value = getattr(plan, key)
        empty = isinstance(value, str) and not value and key in _OPTIONAL
        if not empty and (not isinstance(value, str) or value not in choices):
            raise PlanError(f"plan.{key} is {value!r}: {nearest(str(value), choices)}")
