"""Keys that leave the program of a step as it is, although nothing that they need is missing.

Whether they matter is up to sizes, slices and the lowering, so it is asked: the step is lowered
again without each.
"""

from collections.abc import Iterator

from tpusim.base.errors import TpusimError
from tpusim.hardware import Placement, Slice
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import PLAN_KEYS, Plan
from tpusim.program import Program
from tpusim.results.unused_keys import KeyEffects

TOLD_ELSEWHERE = (
    *("mesh", "global_batch", "placement", "rules", "annotate", "save", "offload"),
    "adapter_weights",
)
"""Keys that are no choice between values, and those with notes of their own."""


def unmoved_keys(
    model: Architecture, plan: Plan, pod: Slice, placement: Placement, programs: tuple[Program, ...]
) -> Iterator[str]:
    """Yield a sentence for each key without which the programs on the placement are the same.

    programs: of the step.
    """
    effects = KeyEffects(model, plan)
    for key in PLAN_KEYS.table:
        if key in TOLD_ELSEWHERE or not effects.gives(key) or effects.unmet(key):
            continue
        usual = effects.usual[key]
        try:
            step = planned_step(model, plan.replace(**{key: usual}), pod.healthy)
            same = step.programs_on(placement) == programs
        except TpusimError:  # without the key, another is wrong
            continue
        if same:
            same_as = f"with {usual!r} the program is the same"
            yield f"plan.{key} does nothing on this placement: {same_as}"
