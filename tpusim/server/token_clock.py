"""The tokens that a sequence has received after a number of decode steps."""

from tpusim.server.policy import Policy

PARTS = 1_000_000
"""Parts of a token in which the mean tokens of a step are counted."""


class TokenClock:
    """The decode steps of a replica, and the tokens that each sequence receives in them.

    Without speculation these are the same. With it, a step brings `accepted` tokens on average: as
    many as make the sum after each step the largest whole number that is not above its mean. So
    all sequences receive equally many tokens in a step, and nothing is drawn.

    rate: parts of a token per step.
    steps: those that are done, and one: a sequence that joins holds the pages of the step before.
    received: tokens that a sequence has received which was there from the beginning.
    """

    __slots__ = ("rate", "received", "steps")

    def __init__(self, policy: Policy) -> None:
        self.rate = round(policy.accepted * PARTS)
        self.steps = self.received = 0
        self.advance(1)

    def advance(self, steps: int) -> None:
        """Go on by some steps."""
        self.steps += steps
        self.received = self.steps * self.rate // PARTS

    def tokens(self, more: int) -> int:
        """Return the tokens that are received when `more` further steps are done."""
        return (self.steps + more) * self.rate // PARTS

    def growth(self, sequences: int) -> int:
        """Return the tokens by which so many sequences grow in a step, rounded."""
        return (2 * sequences * self.rate + PARTS) // (2 * PARTS)

    def step_of(self, tokens: int) -> int:
        """Return the number of steps after which so many tokens are received."""
        return -(-tokens * PARTS // self.rate)

    def steps_within(self, tokens: int) -> int:
        """Return the further steps that begin before more than `tokens` tokens are received."""
        return ((tokens + 1) * PARTS - 1) // self.rate - self.steps + 1
