"""The result of one step of a server: tokens of prompts and of sequences that decode."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from tpusim.accuracy import HbmOdds
from tpusim.base.plain_text import plain
from tpusim.plan import ServingPlan
from tpusim.results.plan_result import PlanResult
from tpusim.results.unit_cost import UnitCost
from tpusim.server.step_load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServedStep(PlanResult):
    """One step of a server, without its host.

    Its `plan` is that by which the step was lowered, a forward pass, and its `tokens` are those of
    the load; the arrays of the step may have more. Its HBM has one page of the cache alone.

    served: the plan of the server.
    load: what the step computes.
    """

    adviser_command: ClassVar[str] = ""
    served: ServingPlan
    load: StepLoad

    @classmethod
    def of_step(cls, step: PlanResult, served: ServingPlan, load: StepLoad) -> Self:
        """Return a simulated step as that of a server."""
        given = {each.name: getattr(step, each.name) for each in fields(PlanResult)}
        return cls(**given | {"tokens": load.decodes + load.prefills}, served=served, load=load)

    @property
    def title(self) -> str:
        """The model, the slice, and whether prompts are computed, or sequences decode, or both."""
        kinds = {"prefill": self.load.prefills, "decode": self.load.decodes}
        kind = " and ".join(name for name, tokens in kinds.items() if tokens) or "empty"
        return f"{plain(self.name)} on {self.pod}: {kind} step"

    @property
    def arrays(self) -> int:
        """Tokens of the arrays of the step, of all ranks, with those that only fill them."""
        return self.plan.global_batch * self.plan.seq_len

    @property
    def hbm_odds(self) -> HbmOdds | None:
        """None: the compiled plans whose HBM is known are steps of training."""
        return None

    @property
    def unit_cost(self) -> UnitCost | None:
        """Dollars for a million tokens of steps like this; None where the chip has no price."""
        return PlanResult.unit_cost.fget(self) if self.tokens else None  # type: ignore[attr-defined]

    def about(self) -> Iterator[tuple[str, str]]:
        """Yield the load, the plan of the server, and the placement."""
        yield "load", f"{self.load}, in arrays of {self.arrays:,} tokens"
        yield "plan", str(self.served)
        yield from ((head, text) for head, text in PlanResult.about(self) if head == "placement")

    def defaults(self) -> tuple[tuple[str, str], ...]:
        """Return nothing: the defaults of a plan that decide are those of training."""
        return ()

    def facts(self) -> Mapping[str, Any]:
        """Return model, plans and load, and what follows from them."""
        served = {"serving": asdict(self.served), "load": self.load._asdict()}
        return {**PlanResult.facts(self), **served, "arrays": self.arrays}
