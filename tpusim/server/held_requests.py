"""Requests that are held until all data-parallel ranks can begin one in the same step."""

from collections.abc import Callable

from simpy import Event

from tpusim.server.moments import ARRIVAL, Moment, Picoseconds
from tpusim.server.policy import Policy
from tpusim.server.sequence import Sequence


class HeldRequests:
    """Requests that no rank has yet.

    All ranks take as long as the fullest one, so that prompts cost least where they are computed
    side by side. All are let go when there are as many as ranks, when there are no more than ranks
    without a request, or once `Policy.hold_ps` has passed since the last time (tpu-inference
    0.32.0, core/sched/dp_scheduler.py, _try_flush_pending).

    idle: how many ranks have no request.
    go: takes the requests.
    """

    def __init__(
        self,
        env: Picoseconds,
        policy: Policy,
        idle: Callable[[], int],
        go: Callable[[list[Sequence]], None],
    ) -> None:
        self.env = env
        self.most = policy.ranks
        self.hold_ps = policy.hold_ps if policy.ranks > 1 else 0
        self.idle = idle
        self.go = go
        self.waiting: list[Sequence] = []
        self.last = -self.hold_ps

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Hold a request that arrives now, or let all go."""
        self.waiting.append(sequence)
        self.check()
        if len(self.waiting) == 1:
            Moment(self.env, self.last + self.hold_ps - self.env.now, ARRIVAL, self._overdue)

    def check(self) -> None:
        """Let all requests go if that is due."""
        count = len(self.waiting)
        overdue = self.env.now - self.last >= self.hold_ps
        if count and (count >= self.most or overdue or self.idle() >= count):
            self.last = self.env.now
            self.go(self.empty())

    def empty(self) -> list[Sequence]:
        """Return the requests, which are held no longer."""
        held, self.waiting = self.waiting, []
        return held

    def _overdue(self, _: Event) -> None:
        self.check()
