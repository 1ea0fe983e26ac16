"""What a user decides about a server beside its plan and its engine."""

from dataclasses import dataclass

from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_from_zero, check_positive, check_words
from tpusim.server.replica_pool import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What `ts.serve` takes of a server beside plan and engine.

    replicas: servers with a slice each.
    router: which replica a request goes to: `round-robin`, `least-loaded` or `prefix`.
    drafted: tokens that speculation drafts for each sequence and step; 0 for none.
    accepted: mean tokens of a sequence and step with speculation, at most `drafted + 1`.
    ready_s: seconds until the replicas begin to serve (cold start).

    Raise PlanError for values that no server has.
    """

    replicas: int = 1
    router: Router = "round-robin"
    drafted: int = 0
    accepted: float = 1.0
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        check_positive("serving.replicas", self.replicas)
        check_words("serving", self)
        for key in ("accepted", "ready_s"):
            check_from_zero(f"serving.{key}", getattr(self, key))
        if not 1 <= self.accepted <= self.drafted + 1:
            raise PlanError(
                f"serving.accepted is {self.accepted:g} and serving.drafted {self.drafted}; write "
                "a mean from 1 to drafted + 1"
            )
