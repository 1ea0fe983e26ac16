"""A replica whose cache has room for all that it runs, which takes far fewer operations a step."""

from collections import deque
from collections.abc import Callable
from functools import cache
from heapq import heappop, heappush
from typing import TypeAlias

from tpusim.server.decode_run import DecodeRun
from tpusim.server.moments import Picoseconds
from tpusim.server.page_growth import PageGrowth
from tpusim.server.policy import Policy
from tpusim.server.request_log import RequestLog
from tpusim.server.sequence import Sequence
from tpusim.server.span_log import SpanLog
from tpusim.server.step_load import StepCosts, StepLoad
from tpusim.server.stepped_replica import SteppedReplica

Done: TypeAlias = Callable[[Sequence], None]


class AmpleReplica(SteppedReplica):
    """An engine of one rank with mixed steps, whose sequences never lack pages.

    It does what a `Replica` does: no request loses its pages, so pages are counted for the log
    alone, and all sequences that decode have received their last token in the step before.

    waiting: requests that hold no pages, in the order in which they are admitted.
    prompt: the one whose prompt is computed in part, if there is one.
    chosen: sequences whose prompts are in the present step.
    clock: decode steps that are done, and one, as in `TokenClock`. Decoding sequences hold the
        pages of the step before, as those of the next one are taken when it begins.
    decoding: a heap of the sequences that decode: the clock at which each is complete, the order in
        which it began to decode, and itself.
    host: `Policy.host`.
    keys: the keys of the decoding sequences, summed; see `Rank`.
    pages: that are taken.
    """

    def __init__(
        self,
        env: Picoseconds,
        number: int,
        policy: Policy,
        costs: StepCosts,
        records: RequestLog,
        log: SpanLog,
        done: Done,
    ) -> None:
        super().__init__(env, number)
        self.costs = costs
        self.records = records
        self.log = log
        self.done = done
        self.page_size = policy.page_size
        self.budget = policy.max_num_batched_tokens
        self.slots = policy.slots
        self.host = cache(policy.host)
        self.peak = records.peak
        self.waiting: deque[Sequence] = deque()
        self.prompt: Sequence | None = None
        self.chosen: list[Sequence] = []
        self.decoding: list[tuple[int, int, Sequence]] = []
        self.growth = PageGrowth(policy.page_size)
        self.clock = 1
        self.joined = self.keys = self.pages = 0

    @staticmethod
    def suits(policy: Policy, longest: int) -> bool:
        """Return whether a replica with this policy never lacks pages, and is as simple.

        longest: tokens of the longest request.
        """
        simple = policy.mixed and policy.chunked_prefill and policy.reserve is None
        alone = policy.ranks == 1 and not policy.drafted
        return simple and alone and policy.slots * -(-longest // policy.page_size) <= policy.pages

    @property
    def present(self) -> int:
        """Sequences that are here."""
        begun = len(self.chosen) + (self.prompt is not None)
        return len(self.waiting) + begun + len(self.decoding)

    def cached(self, _: Sequence) -> int:
        """Return 0, as no prompt is cached."""
        return 0

    def arrive(self, sequence: Sequence) -> None:
        """Take a sequence that arrives now."""
        may_join = not self.waiting and self.prompt is None and len(self.decoding) < self.slots
        self.waiting.append(sequence)
        if self.ending is None:
            self.wake()
        elif may_join:
            self._cut_short()

    # the beginning of a step

    def _next(self, now: int) -> bool:
        decodes, clock = len(self.decoding), self.clock
        self.start = now
        self.pages += self.growth.counts[(clock - 1) % self.page_size]
        if self.waiting or self.prompt is not None:
            self._choose(self.budget - decodes)
        asked = self.pages
        context = self.keys + decodes * clock
        if self.chosen:
            self.run, self.steps = None, 1
            self.duration = self._prompts_ps(decodes, context)
        elif decodes:
            self.steps = self.decoding[0][0] - clock
            asked += -(-(self.steps - 1) // self.page_size) * decodes
            self.run = DecodeRun(self.costs, decodes, context, decodes, *self.host(decodes))
            self.duration = self.run.ps(self.steps)
        else:
            return False
        if asked > self.peak.pages:
            self.peak.pages = asked
        return True

    def _choose(self, budget: int) -> None:
        """Choose the prompts of the next step, `chunk` tokens of each."""
        whole, page, chosen = self.budget, self.page_size, self.chosen
        most = self.slots - len(self.decoding)
        while budget > 0 and (self.prompt is not None or (self.waiting and len(chosen) < most)):
            if self.prompt is not None:
                sequence, self.prompt = self.prompt, None
            else:
                sequence = self.waiting.popleft()
                self.records.scheduled[sequence.request] = self.start
            missing = sequence.tokens - sequence.computed
            if whole - budget + missing > self.peak.tokens:
                self.peak.tokens = whole - budget + missing
            chunk = sequence.chunk = missing if missing < budget else budget
            pages = -(-(sequence.computed + chunk) // page)
            self.pages += pages - sequence.pages
            sequence.pages = pages
            chosen.append(sequence)
            budget -= chunk
        sequences = len(self.decoding) + len(chosen)
        if sequences > self.peak.sequences:
            self.peak.sequences = sequences

    def _prompts_ps(self, decodes: int, context: int) -> int:
        """Return the time of a step with the prompts that are chosen."""
        tokens = keys = pairs = 0
        for sequence in self.chosen:
            chunk, computed = sequence.chunk, sequence.computed
            tokens += chunk
            keys += computed + chunk
            pairs += chunk * computed + chunk * (chunk + 1) // 2
        between, least = self.host(len(self.chosen) + decodes)
        time = between + self.costs.step_ps(StepLoad(decodes, context, tokens, keys, pairs))
        return time if time > least else least

    # the end of a step

    def _take_effect(self, now: int, steps: int) -> None:
        start, chosen, decoding = self.start, self.chosen, self.decoding
        decodes, prefills, time = len(decoding), 0, now - start
        if steps > 1:
            self.pages += self.growth.between(self.clock, self.clock + steps - 1)
        for sequence in chosen:
            prefills += sequence.chunk
        self.log.add(
            (start, now, time, steps, decodes * steps, prefills, self.pages, len(self.waiting))
        )
        self.clock += steps
        if decodes:
            self.records.gap(time // steps, decodes * steps)
            while decoding and decoding[0][0] <= self.clock:
                self._complete(heappop(decoding)[2], now)
        if chosen:
            self.chosen = []
            for sequence in chosen:
                self._end_prompt(sequence, now)

    def _complete(self, sequence: Sequence, now: int) -> None:
        """Let a sequence leave that has all its tokens."""
        key = sequence.key
        self.growth.remove(key)
        self.keys -= key
        self.pages -= -(-(key + self.clock - 1) // self.page_size)
        self.records.answer(sequence.request, now, 0)
        self.done(sequence)

    def _end_prompt(self, sequence: Sequence, now: int) -> None:
        """Let a sequence go on whose prompt was in the step."""
        sequence.computed += sequence.chunk
        if sequence.computed < sequence.tokens:
            self.prompt = sequence
            return
        self.records.first[sequence.request] = now
        if sequence.left == 1:
            self.pages -= sequence.pages
            self.records.answer(sequence.request, now, 0)
            self.done(sequence)
            return
        key = sequence.key = sequence.tokens + 1 - self.clock
        self.growth.add(key)
        self.keys += key
        self.joined += 1
        heappush(self.decoding, (self.clock + sequence.left - 1, self.joined, sequence))
