"""The optimizer of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_flag, check_names, check_words
from tpusim.plan.axes import check_known
from tpusim.plan.pipeline import STAGE_AXES

OptimizerName: TypeAlias = Literal["adam", "adafactor", "sgd", "momentum", "lars", "lamb", "muon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The optimizer and the place of its state.

    name: `adam`, `adafactor`, `sgd`, `momentum`, `lars`, `lamb` or `muon`. `momentum` is SGD with
        momentum; `lars` (arXiv:1708.03888) and `lamb` (arXiv:1904.00962) have a rate for each
        weight; `muon` (arXiv:2502.16982) makes the momentum of the layers' matrices orthogonal and
        takes Adam for embedding, head and vectors.
    offload: keep the moments on the host; they pass through HBM at the update.
    axes: axes over which replicated weights are updated in parts (ZeRO-1). Gradients are scattered
        over them (weight-update sharding, arXiv:2004.13336); each device has its part of the
        moments and, between steps, of the weights, which are cast and gathered once when a step
        begins. The forward and the backward pass read whole weights.
    """

    name: OptimizerName = "adam"
    offload: bool = False
    axes: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_words("plan.optimizer", self)
        check_flag("plan.optimizer.offload", self.offload)
        check_names("plan.optimizer.axes", self.axes, '["data"]')
        object.__setattr__(self, "axes", tuple(self.axes))

    def check_together(self, mesh: Mapping[str, int]) -> None:
        """Raise PlanError for axes that no update can be divided over, and LAMB with host moments.

        mesh: axis -> size.
        """
        check_known("plan.optimizer.axes divides updates", tuple(self.axes), mesh)
        if stages := [axis for axis in self.axes if axis in STAGE_AXES]:
            raise PlanError(
                f"plan.optimizer.axes lists {stages[0]!r}, but each stage has weights of its own; "
                "write axes over which weights are replicated, such as ['data']"
            )
        if self.name == "lamb" and self.offload:
            raise PlanError(
                "plan.optimizer.name is 'lamb' and plan.optimizer.offload is true, but its rates "
                "need the moments of all weights before the first update; write 'adam', or keep "
                "the moments in HBM"
            )
