"""What a training run with stragglers assumes."""

from collections.abc import Iterator

from tpusim.results import PlanResult
from tpusim.training.stragglers import Stragglers


def straggler_notes(step: PlanResult, asked: Stragglers) -> Iterator[str]:
    """Yield what is assumed of the stragglers of a run."""
    if asked.chips is not None:
        yield "several slow chips take as long as one, and each is slow for whole steps"
    pauses = asked.pauses
    if pauses is not None and pauses.lead_s is None and step.plan.loop != "synchronous":
        yield (
            "hosts are taken to be a step ahead, which hides shorter pauses; write "
            "stragglers.pauses.lead_s"
        )
