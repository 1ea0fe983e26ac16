"""A replica of an engine in time: its steps, one after another."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from tpusim.server.held_requests import HeldRequests
from tpusim.server.moments import Picoseconds
from tpusim.server.policy import Policy
from tpusim.server.rank import Rank
from tpusim.server.rank_steps import RankSteps
from tpusim.server.request_log import RequestLog
from tpusim.server.sequence import Sequence
from tpusim.server.span_log import SpanLog
from tpusim.server.step_load import StepCosts
from tpusim.server.stepped_replica import SteppedReplica
from tpusim.server.token_clock import TokenClock

Done: TypeAlias = Callable[[Sequence], None]
Send: TypeAlias = Callable[["Replica", Sequence], None]


class Replica(SteppedReplica):
    """An engine whose data-parallel ranks step together.

    chosen: sequences whose prompts are in the present step.
    decodes: sequences that decode in each of the present steps.
    advances: the clock goes on with these steps.
    heap: the steps after which sequences are complete. An entry whose sequence ends elsewhere is
        void.
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
        send: Send | None = None,
        receives: bool = False,
        block: int = 0,
        fold: bool = True,
    ) -> None:
        super().__init__(env, number)
        self.policy = policy
        self.records = records
        self.log = log
        self.done = done
        self.send = send
        self.receives = receives
        self.fold = fold
        self.mixed = policy.mixed
        self.prompts_first = policy.mixed or policy.priority == "prefill"
        self.ranks = [Rank(policy, records, block) for _ in range(policy.ranks)]
        self.held = HeldRequests(env, policy, self._idle_ranks, self._let_wait)
        self.clock = TokenClock(policy)
        self.planned = RankSteps(policy, costs, self.ranks, self.clock)
        self.decodes = 0
        self.advances = False
        self.chosen: list[Sequence] = []
        self.heap: list[tuple[int, int, Sequence]] = []
        self.joined = 0

    @property
    def present(self) -> int:
        """Sequences that are here."""
        return sum(rank.present for rank in self.ranks) + len(self.held)

    def _idle_ranks(self) -> int:
        return sum(not rank.present for rank in self.ranks)

    # from outside

    def arrive(self, sequence: Sequence) -> None:
        """Take a sequence that arrives now."""
        if self.held.hold_ps:
            self.held.add(sequence)
        else:
            self._wait_in_rank(sequence)

    def _let_wait(self, sequences: list[Sequence]) -> None:
        """Let each sequence wait in the rank with the fewest prompts to compute."""
        for sequence in sequences:
            self._wait_in_rank(sequence)

    def _wait_in_rank(self, sequence: Sequence) -> None:
        sequence.rank = 0
        if len(self.ranks) > 1:
            sequence.rank = min(range(len(self.ranks)), key=lambda at: self.ranks[at].load)
        rank = self.ranks[sequence.rank]
        rank.present += 1
        may_join = rank.admits()
        rank.waiting.append(sequence)
        if self.ending is None:
            self.wake()
        elif may_join and self.prompts_first:
            self._cut_short()

    def cached(self, sequence: Sequence) -> int:
        """Return the tokens of a prompt that are cached in the rank which has most of them."""
        if done := self._steps_done():  # pages that those took may have been of cached blocks
            for rank in self.ranks:
                rank.grow(self.clock.tokens(done))
        return max(rank.pages.found(sequence)[0] for rank in self.ranks)

    def stop(self) -> list[Sequence]:
        """Lose the present step and all pages; return the sequences, the oldest first."""
        self.up = False
        if self.run is not None and (done := self._steps_done()):
            self._take_effect(self.start + self.run.ps(done), done)
        for sequence in reversed(self.chosen):
            rank = self.ranks[sequence.rank]
            rank.pages.release(sequence, sequence.pages)
            rank.put_back(sequence)
        self.chosen, self.ending, self.run = [], None, None
        self.heap.clear()
        now, before = self.clock.received, self.clock.tokens(-1)
        lost = [sequence for rank in self.ranks for sequence in rank.empty(now, before)]
        for sequence in lost:
            self.records.lose(sequence.request)
        return lost + self.held.empty()

    # the beginning of a step

    def _next(self, now: int) -> bool:
        """Plan the next steps, if there is something to do; return whether there is."""
        if self.held.waiting:
            self.held.check()
        clock = self.clock.received
        chosen = self._choose_mixed(clock) if self.mixed else self._choose_apart(clock)
        if chosen:
            self._note_scheduled(chosen, now)
        if self.receives:
            self._note_adopted(clock)
        decodes = lost = 0
        for rank in self.ranks:
            decodes += len(rank.decoding)
            lost += rank.lost or rank.unsettled
        if chosen:
            self.decodes = decodes if self.mixed else 0
            self.advances = self.mixed
            self.run, self.steps = None, 1
            self.duration = self.planned.prompts_ps(chosen, self.decodes)
        elif decodes:
            self.decodes, self.advances = decodes, True
            steps = self._steps_at_most() if self.fold and not lost else 1
            self.run, self.steps = self.planned.decode_run(decodes, steps)
            self.duration = self.run.ps(self.steps)
        else:
            if lost:
                self.wake()
            return False
        self.start = now
        return True

    def _choose_mixed(self, clock: int) -> list[Sequence]:
        """Return the prompts of a step in which all decoding sequences are."""
        chosen: list[Sequence] = []
        for rank in self.ranks:
            rank.lost = False
            rank.make_room(clock)
            if (rank.waiting or rank.prompt is not None) and not rank.lost:
                chosen += rank.prompts(rank.budget - len(rank.decoding) * rank.verified, clock)
        return chosen

    def _choose_apart(self, clock: int) -> list[Sequence]:
        """Return the prompts of a step that has nothing else; none if it decodes."""
        chosen: list[Sequence] = []
        decodes = False
        for rank in self.ranks:
            rank.lost = rank.unsettled = False
            decodes = decodes or bool(rank.decoding)
        if self.prompts_first or not decodes:
            for rank in self.ranks:
                chosen += rank.prompts(rank.budget, clock)
                decodes = decodes or bool(rank.decoding)  # some may have come with their cache
        if not chosen and decodes:
            for rank in self.ranks:
                rank.make_room(clock)
        return chosen

    def _note_scheduled(self, chosen: list[Sequence], now: int) -> None:
        self.chosen = chosen
        for sequence in chosen:
            self.records.schedule(sequence.request, now, sequence.computed)

    def _note_adopted(self, clock: int) -> None:
        for rank in self.ranks:
            for sequence in rank.adopted:
                if sequence in rank.decoding:  # it may have lost its pages at once
                    self._plan_end(sequence, clock)
            rank.adopted.clear()

    def _plan_end(self, sequence: Sequence, clock: int) -> None:
        sequence.ends = self.clock.step_of(clock + sequence.left)
        self.joined += 1
        heappush(self.heap, (sequence.ends, self.joined, sequence))

    def _steps_at_most(self) -> int:
        """Return the decode steps until a sequence is complete, or before one finds no page."""
        heap = self.heap
        while heap[0][2].ends != heap[0][0]:
            heappop(heap)
        steps = heap[0][0] - self.clock.steps
        for rank in self.ranks:
            last = self.clock.tokens(steps - 1)
            found = rank.reach(last)
            if found < last:
                steps = self.clock.steps_within(found)
        return steps

    # the end of a step

    def _take_effect(self, now: int, steps: int) -> None:
        """Let the sequences have what was computed in steps that end now."""
        start, clock, ranks, decodes = self.start, self.clock, self.ranks, self.decodes
        last = clock.tokens(steps - 1) if steps > 1 else 0
        pages = prefills = 0
        waiting = len(self.held.waiting)
        self.run = None
        for rank in ranks:
            if last:
                rank.grow(last)
            pages += rank.total - rank.pages.free
            waiting += len(rank.waiting)
            if decodes:
                rank.received(start, now, steps)
        for sequence in self.chosen:
            prefills += sequence.chunk
        time = now - start
        self.log.add((start, now, time, steps, decodes * steps, prefills, pages, waiting))
        if self.advances:
            clock.advance(steps)
            self._complete(now)
        if self.chosen:
            self._end_prompts(now)
        if self.advances:
            for rank in ranks:
                rank.answers = [(now, len(rank.decoding))] if rank.decoding else []

    def _complete(self, now: int) -> None:
        """Let the sequences leave that have all their tokens."""
        heap, steps, clock = self.heap, self.clock.steps, self.clock.received
        while heap and heap[0][0] <= steps:
            ends, _, sequence = heappop(heap)
            if sequence.ends == ends:
                self.ranks[sequence.rank].leave(sequence, clock)
                self._answer(sequence, now)

    def _end_prompts(self, now: int) -> None:
        """Let the sequences go on whose prompts were in the step."""
        clock = self.clock.received
        chosen, self.chosen = self.chosen, []
        for sequence in chosen:
            sequence.computed += sequence.chunk
            if sequence.computed < sequence.tokens:
                self.ranks[sequence.rank].prompt = sequence
                continue
            sequence.tokens += 1
            sequence.left -= 1
            if sequence.left and self.send is not None:
                self.ranks[sequence.rank].present -= 1
                self.send(self, sequence)
            else:
                self._begin_to_decode(sequence, clock, now)

    def _begin_to_decode(self, sequence: Sequence, clock: int, now: int) -> None:
        records, rank = self.records, self.ranks[sequence.rank]
        if records.first[sequence.request] < 0:
            records.first[sequence.request] = now
        else:
            records.gap(now - sequence.answered_ps, 1)
        sequence.computed = 0
        if sequence.left:
            rank.join(sequence, clock)
            self._plan_end(sequence, clock)
            if not self.advances:
                rank.answers.append((now, 1))
        else:
            rank.pages.release(sequence, sequence.pages)
            self._answer(sequence, now)

    def _answer(self, sequence: Sequence, now: int) -> None:
        records, request = self.records, sequence.request
        self.ranks[sequence.rank].present -= 1
        records.answer(request, now, sequence.left)
        self.done(sequence)
