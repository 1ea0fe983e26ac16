"""Replicas of one kind behind a router."""

from collections import deque
from typing import Literal, TypeAlias

from tpusim.server.replica import Replica
from tpusim.server.sequence import Sequence
from tpusim.server.stepped_replica import SteppedReplica

Router: TypeAlias = Literal["round-robin", "least-loaded", "prefix"]
ROUTERS: tuple[Router, ...] = ("round-robin", "least-loaded", "prefix")


class ReplicaPool:
    """Replicas, and the router that gives each request to one of those that are up.

    round-robin: to the next one.
    least-loaded: to that with the fewest requests.
    prefix: to that which has most of the prompt in its cache, and of these to the least loaded.

    held: requests that wait for a replica while none is up.
    """

    def __init__(self, replicas: list[SteppedReplica], router: Router) -> None:
        self.replicas = replicas
        self.router = router
        self.up = list(replicas)
        self.turn = 0
        self.held: deque[Sequence] = deque()

    def route(self, sequence: Sequence) -> None:
        """Give a request to a replica."""
        if not self.up:
            self.held.append(sequence)
        elif len(self.up) == 1:
            self.up[0].arrive(sequence)
        else:
            self._choose(sequence).arrive(sequence)

    def stop(self, replica: Replica) -> None:
        """Take a replica down, and give its requests to the others."""
        sequences = replica.stop()
        self._list()
        for sequence in sequences:
            self.route(sequence)

    def start(self, replica: Replica) -> None:
        """Let a replica serve, with nothing in its cache."""
        replica.up = True
        self._list()

    def release(self) -> None:
        """Route the requests that were held, if a replica is up."""
        while self.held and self.up:
            self.route(self.held.popleft())

    def _list(self) -> None:
        self.up = [replica for replica in self.replicas if replica.up]

    def _choose(self, sequence: Sequence) -> SteppedReplica:
        if self.router == "round-robin":
            self.turn += 1
            return self.up[(self.turn - 1) % len(self.up)]
        if self.router == "least-loaded":
            return min(self.up, key=lambda replica: replica.present)
        return min(self.up, key=lambda replica: (-replica.cached(sequence), replica.present))
