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

    alone: nothing else happens but arrivals at this replica.
    foreseen_ps: the arrival that ends the present run; None if the run is planned to its end.
    waiting: requests that hold no pages, in the order in which they are admitted.
    prompt: the one whose prompt is computed in part, if there is one.
    chosen: sequences whose prompts are in the present step, and `prefills` of their tokens.
    clock: decode steps that are done, and one, as in `TokenClock`. Decoding sequences hold the
        pages of the step before, as those of the next one are taken when it begins.
    decoding: a heap of the sequences that decode: the clock at which each is complete, its request,
        as they begin to decode in the order of these, and itself.
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
        *,
        alone: bool,
    ) -> None:
        super().__init__(env, number)
        self.costs = costs
        self.records = records
        self.log = log
        self.done = done
        self.alone = alone
        self.foreseen_ps: int | None = None
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
        self.prefills = self.keys = self.pages = 0

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
        elif may_join and self.env.now != self.foreseen_ps:
            self._cut_short()

    # the beginning of a step

    def _next(self, now: int) -> bool:
        decodes, clock = len(self.decoding), self.clock
        self.start = now
        context = self.keys + decodes * clock
        if decodes:
            self.pages += self.growth.counts[(clock - 1) % self.page_size]
        tokens = keys = pairs = 0
        if self.waiting or self.prompt is not None:
            tokens, keys, pairs = self._choose(self.budget - decodes)
        asked = self.pages
        self.prefills = tokens
        if tokens:
            between, least = self.host(len(self.chosen) + decodes)
            time = between + self.costs.step_ps(StepLoad(decodes, context, tokens, keys, pairs))
            self.run, self.steps, self.duration = None, 1, time if time > least else least
        elif decodes:
            steps = self.decoding[0][0] - clock
            asked += -(-(steps - 1) // self.page_size) * decodes
            self.run = DecodeRun(self.costs, decodes, context, decodes, *self.host(decodes))
            self._plan_run(self.run, steps)
        else:
            return False
        if asked > self.peak.pages:
            self.peak.pages = asked
        return True

    def _plan_run(self, run: DecodeRun, steps: int) -> None:
        """Plan a run up to the step in which a request arrives that may be admitted, or its end."""
        self.foreseen_ps = None
        if self.alone and not self.waiting and len(self.decoding) < self.slots:
            next_ps = self.env.next_ps
            if next_ps is not None:
                until, duration = run.foreseen(next_ps - self.start, steps)
                if until:
                    self.foreseen_ps, self.steps, self.duration = next_ps, until, duration
                    return
        self.steps, self.duration = steps, run.ps(steps)

    def _choose(self, budget: int) -> tuple[int, int, int]:
        """Choose the prompts of the next step; return their tokens, keys and pairs (`StepLoad`)."""
        chosen, waiting, peak = self.chosen, self.waiting, self.peak
        sequences = len(self.decoding)
        tokens = keys = pairs = 0
        while budget > 0:
            if self.prompt is not None:
                sequence, self.prompt = self.prompt, None
            elif waiting and sequences < self.slots:
                sequence = waiting.popleft()
                self.records.scheduled[sequence.request] = self.start
            else:
                break
            chunk = missing = sequence.tokens - sequence.computed
            if self.budget - budget + missing > peak.tokens:
                peak.tokens = self.budget - budget + missing
            if chunk > budget:
                chunk = budget
            seen = sequence.computed + chunk
            pages = -(-seen // self.page_size)
            self.pages += pages - sequence.pages
            sequence.chunk, sequence.pages = chunk, pages
            tokens += chunk
            keys += seen
            pairs += chunk * sequence.computed + chunk * (chunk + 1) // 2
            chosen.append(sequence)
            sequences += 1
            budget -= chunk
        if sequences > peak.sequences:
            peak.sequences = sequences
        return tokens, keys, pairs

    # the end of a step

    def _goes_on(self) -> bool:
        if self.run is None or self.foreseen_ps is None or self.waiting:
            return False
        self.foreseen_ps = None  # the request was refused
        self.steps = self.decoding[0][0] - self.clock
        self.duration = self.run.ps(self.steps)
        return True

    def _take_effect(self, now: int, steps: int) -> None:
        start, decoding, chosen = self.start, self.decoding, self.chosen
        clock = self.clock
        time, tokens = now - start, len(decoding) * steps
        if steps > 1:
            self.pages += self.growth.between(clock, clock + steps - 1)
        waiting = len(self.waiting)
        self.log.add((start, now, time, steps, tokens, self.prefills, self.pages, waiting))
        clock = self.clock = clock + steps
        if tokens:
            self.records.gap(time // steps, tokens)
            while decoding and decoding[0][0] <= clock:
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
        heappush(self.decoding, (self.clock + sequence.left - 1, sequence.request, sequence))
