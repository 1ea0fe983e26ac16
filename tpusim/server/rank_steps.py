"""The steps of ranks that step together: what they compute, and how long they take."""

from tpusim.server.decode_run import DecodeRun
from tpusim.server.policy import Policy
from tpusim.server.rank import Rank
from tpusim.server.sequence import Sequence
from tpusim.server.step_load import StepCosts, StepLoad
from tpusim.server.token_clock import TokenClock


class RankSteps:
    """The next step of the ranks of a replica.

    All ranks run the step of the fullest one, as devices wait for each other. The load of a step
    with prompts is that of the rank with most tokens, times the number of ranks; that of a step
    which only decodes has the most sequences of a rank and the most keys of a rank.
    """

    __slots__ = ("clock", "costs", "mixed", "policy", "ranks", "verified")

    def __init__(
        self, policy: Policy, costs: StepCosts, ranks: list[Rank], clock: TokenClock
    ) -> None:
        self.policy = policy
        self.costs = costs
        self.ranks = ranks
        self.clock = clock
        self.mixed = policy.mixed
        self.verified = 1 + policy.drafted

    def prompts_ps(self, chosen: list[Sequence], decodes: int) -> int:
        """Return the time of a step with the prompts of `chosen`.

        decodes: sequences that decode in it.
        """
        ranks, count = self.ranks, len(self.ranks)
        if count == 1:
            load = self._load(ranks[0], chosen)
        else:
            apart = [[each for each in chosen if each.rank == rank] for rank in range(count)]
            loads = [self._load(*each) for each in zip(ranks, apart, strict=True)]
            fullest = max(loads, key=lambda one: (one.decodes + one.prefills, one.context))
            routed = sum(one.decodes + one.prefills for one in loads)
            load = StepLoad(*(count * each for each in fullest))._replace(routed=routed)
        between, least = self.policy.host(len(chosen) + decodes)
        time = between + self.costs.step_ps(load)
        return time if time > least else least

    def _load(self, rank: Rank, chosen: list[Sequence]) -> StepLoad:
        """Return what a rank computes in a step with prompts."""
        tokens = keys = pairs = 0
        for sequence in chosen:
            chunk, computed = sequence.chunk, sequence.computed
            tokens += chunk
            keys += computed + chunk
            pairs += chunk * computed + chunk * (chunk + 1) // 2
        if not self.mixed:
            return StepLoad(0, 0, tokens, keys, pairs)
        decodes = len(rank.decoding) * self.verified
        return StepLoad(decodes, rank.context(self.clock.received), tokens, keys, pairs)

    def decode_run(self, decodes: int, steps: int) -> tuple[DecodeRun, int]:
        """Return decode steps in a row, and how many of `steps` are alike in their load.

        decodes: sequences of all ranks.
        """
        ranks, clock, count = self.ranks, self.clock, len(self.ranks)
        if count == 1:
            most = grows = decodes
            context = ranks[0].context(clock.received)
        else:
            loads = [(rank.context(clock.received), len(rank.decoding)) for rank in ranks]
            context, grows = max(loads)
            most = max(decoding for _, decoding in loads)
            for keys, decoding in loads:
                if decoding > grows:  # this rank will have more keys than the one with most now
                    later = (context - keys) // (decoding - grows) + 1
                    steps = min(steps, clock.step_of(clock.received + later) - clock.steps)
        run = DecodeRun(
            self.costs,
            count * most * self.verified,
            count * context,
            clock.growth(count * grows),
            *self.policy.host(decodes),
        )
        return run, max(1, steps)
