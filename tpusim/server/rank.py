"""The requests and pages of one data-parallel rank, and who of them is in the next step."""

from collections import deque

from tpusim.server.cached_pages import CachedPages
from tpusim.server.page_growth import PageGrowth
from tpusim.server.policy import Policy
from tpusim.server.request_log import RequestLog
from tpusim.server.sequence import Sequence


class Rank:
    """A queue of requests, those that run, and their pages.

    Requests are admitted first come, first served, and one that finds no room stops those behind
    it, as in vLLM V1 (vllm/v1/core/sched/scheduler.py). With `Policy.reserve`, room is counted as
    in SGLang-JAX (python/sgl_jax/srt/managers/schedule_policy.py).

    Each decoding sequence computes in every step that decodes, so all are counted and none is
    visited: a sequence is its key, and has `key + clock` tokens, where the clock counts the tokens
    that a sequence has received since the replica began.

    present: sequences that are here.
    waiting: those that hold no pages, in the order in which they are admitted.
    decoding: those that decode, in the order in which they began to.
    total: pages, in use or not.
    prompt: the one whose prompt is computed in part, if there is one; it is the youngest.
    keys: the keys of the decoding sequences, summed.
    ends: the clock at which each decoding sequence is complete, summed.
    since: the clock when a sequence began to decode or left, the last time.
    level: the clock for which decoding sequences hold their pages.
    lost: a sequence has lost its pages for the present step.
    unsettled: cached blocks may have, after prompts were chosen. In both cases a prompt that waits
        may find room in the next step although nothing else changes.
    adopted: sequences that began to decode with a cache from another replica.
    answers: times, and how many of the decoding sequences received their last token at each.
    peak: the most that this rank and others asked of their limits.
    """

    def __init__(self, policy: Policy, records: RequestLog, block: int = 0) -> None:
        self.records = records
        self.policy = policy
        self.total = policy.pages
        self.page_size = policy.page_size
        self.drafted = policy.drafted
        self.verified = 1 + policy.drafted
        self.budget = policy.max_num_batched_tokens
        self.slots = policy.slots
        self.reserve = policy.reserve
        self.pages = CachedPages(policy.pages, policy.page_size, block)
        self.growth = PageGrowth(policy.page_size)
        self.present = 0
        self.waiting: deque[Sequence] = deque()
        self.decoding: dict[Sequence, None] = {}
        self.prompt: Sequence | None = None
        self.keys = 0
        self.ends = self.since = 0
        self.level = 0
        self.lost = self.unsettled = False
        self.answers: list[tuple[int, int]] = []
        self.adopted: list[Sequence] = []
        self.peak = records.peak
        if block:  # idle blocks stay as long as their pages are not needed, so pages are all used
            self.peak.pages = policy.pages

    def admits(self) -> bool:
        """Return whether a request that arrives now may be in the next step."""
        return not self.waiting and self.prompt is None and len(self.decoding) < self.slots

    @property
    def load(self) -> tuple[int, int]:
        """Prompts that are not computed, and sequences: the least of these gets the next request.

        tpu-inference 0.32.0 counts the tokens of the prompts (core/sched/dp_scheduler.py,
        _find_best_rank_for_request).
        """
        return len(self.waiting) + (self.prompt is not None), self.present

    def context(self, clock: int) -> int:
        """Return the keys that all decoding sequences attend to in the next step."""
        return self.keys + len(self.decoding) * (clock + self.drafted)

    # decoding

    def make_room(self, clock: int) -> None:
        """Take the pages of a step that decodes.

        While pages are missing, the sequence that was admitted last loses its own, and waits before
        all others to be computed again.
        """
        pages = self.growth.between(self.level, clock)
        while not self._find(pages):
            self._preempt(clock)
            pages = self.growth.between(self.level, clock)
        if pages:
            self.unsettled = (
                bool(self.pages.idle) and not self.policy.mixed and self._cached_in_part()
            )
            self.pages.take(pages)
        self.level = clock

    def reach(self, clock: int) -> int:
        """Return the last clock up to `clock` for which all decoding sequences find pages.

        Where a prompt that waits for pages is cached in part, no block is lost unseen: what it
        needs may be less afterwards.
        """
        pages = self.pages
        keep = len(pages.idle) * pages.per_block if pages.idle and self._cached_in_part() else 0
        if self._find(self.growth.at_most(self.level, clock) + keep):
            return clock
        return self.growth.reach(self.level, clock, pages.free - keep)

    def _find(self, pages: int) -> bool:
        """Return whether so many pages are free."""
        free = self.pages.free
        needed = self.total - free + pages
        if needed > self.peak.pages:
            self.peak.pages = needed
        return pages <= free

    def _cached_in_part(self) -> bool:
        """Return whether a prompt waits for pages that is cached in part."""
        if not self.waiting or len(self.decoding) >= self.slots:
            return False
        return self.pages.found(self.waiting[0])[0] > 0

    def grow(self, clock: int) -> None:
        """Take the pages of all steps up to the one that begins at `clock`."""
        if pages := self.growth.between(self.level, clock):
            self.pages.take(pages)
        self.level = clock

    def join(self, sequence: Sequence, clock: int) -> None:
        """Let a sequence decode from `clock` on."""
        key = sequence.key = sequence.tokens - clock
        pages = self.pages.of(key + self.level + self.drafted)
        if pages != sequence.pages:
            self.pages.take(pages - sequence.pages)
        self.growth.add(key + self.drafted)
        self.keys += key
        self.ends += clock + sequence.left
        self.since = clock
        self.decoding[sequence] = None

    def leave(self, sequence: Sequence, clock: int) -> None:
        """Take a sequence out of those that decode, and count the tokens that it received."""
        del self.decoding[sequence]
        key = sequence.key
        self.growth.remove(key + self.drafted)
        self.keys -= key
        self.since = clock
        received = min(key + clock - sequence.tokens, sequence.left)
        self.ends -= sequence.tokens - key + sequence.left
        sequence.tokens += received
        sequence.left -= received
        sequence.ends = 0
        self.pages.release(sequence, self.pages.of(key + self.level + self.drafted))

    def _preempt(self, clock: int) -> None:
        if self.prompt is not None:
            sequence, self.prompt = self.prompt, None
            self.pages.release(sequence, sequence.pages)
        else:
            sequence = next(reversed(self.decoding))
            self.leave(sequence, clock)
            sequence.answered_ps, count = self.answers.pop()
            if count > 1:
                self.answers.append((sequence.answered_ps, count - 1))
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Let a sequence that has lost its pages wait before all others."""
        sequence.computed = 0
        self.lost = True
        self.records.preemptions[sequence.request] += 1
        self.waiting.appendleft(sequence)

    def empty(self, clock: int, level: int) -> list[Sequence]:
        """Take all sequences from the rank, and all that its pages keep.

        level: the clock at which the last whole step began.
        """
        while self.decoding or self.prompt is not None:
            self._preempt(clock)
        everyone = list(self.waiting)
        self.waiting.clear()
        self.present = 0
        self.level = level
        self.pages = self.pages.emptied(self.policy.pages)
        return everyone

    def received(self, start: int, end: int, steps: int) -> None:
        """Write down the gaps before the tokens of decode steps."""
        each = (end - start) // steps
        alike = (steps - 1) * len(self.decoding)
        for time, count in self.answers:
            if time == start:
                alike += count
            else:
                self.records.gap(start + each - time, count)
        if alike:
            self.records.gap(each, alike)

    # prompts

    def prompts(self, budget: int, clock: int) -> list[Sequence]:
        """Return the sequences whose prompts are in the next step, `chunk` tokens of each.

        Their pages are taken. Sequences that came with their cache begin to decode instead.
        """
        chosen: list[Sequence] = []
        waiting, coming = self.waiting, 0
        if (begun := self.prompt) is not None:
            if not self._extend(begun, budget, clock):
                return chosen
            chosen.append(begun)
            budget -= begun.chunk
            coming = self._coming(begun)
            self.prompt = None
        while waiting and budget > 0 and len(self.decoding) + len(chosen) < self.slots:
            sequence = waiting[0]
            if sequence.computed:
                if not self._adopt(sequence, clock, coming):
                    break
                budget -= self.verified * self.policy.mixed
            elif self._admit(sequence, budget, coming):
                chosen.append(sequence)
                budget -= sequence.chunk
                coming += self._coming(sequence)
            else:
                break
            waiting.popleft()
        sequences = len(self.decoding) + len(chosen)
        if sequences > self.peak.sequences:
            self.peak.sequences = sequences
        return chosen

    def _needed(self, sequence: Sequence, computed: int) -> int:
        """Return the pages of a prompt of which `computed` tokens are in the cache."""
        if computed == sequence.tokens:
            computed += self.drafted
        return -(-computed // self.page_size)

    def _extend(self, sequence: Sequence, budget: int, clock: int) -> bool:
        """Take the pages of the next chunk of the prompt that is begun, if they are free.

        In a mixed step it loses its pages otherwise, as it is the youngest; where steps have one
        kind, it goes on when others are complete.
        """
        chunk = self._chunk(sequence.tokens - sequence.computed, budget)
        if not chunk:
            return False
        pages = self._needed(sequence, sequence.computed + chunk)
        if self._find(pages - sequence.pages):
            self._take(sequence, chunk, pages)
            return True
        if self.policy.mixed:
            self._preempt(clock)
        return False

    def _chunk(self, missing: int, budget: int) -> int:
        """Return how many of the missing tokens of a prompt the next step has room for."""
        asked = self.budget - budget + missing
        if asked > self.peak.tokens:
            self.peak.tokens = asked
        return missing if missing < budget else budget

    def _take(self, sequence: Sequence, chunk: int, pages: int) -> None:
        self.pages.take(pages - sequence.pages)
        sequence.chunk = chunk
        sequence.pages = pages
        if sequence.blocks:
            self.pages.keep(sequence, sequence.computed, sequence.computed + chunk)

    def _admit(self, sequence: Sequence, budget: int, coming: int) -> bool:
        """Admit a prompt with its first chunk, if its pages and its tokens find room."""
        if not sequence.blocks:
            return self._admit_after(sequence, 0, 0, budget, coming)
        cached, idle = self.pages.found(sequence)
        if self._admit_after(sequence, cached, idle, budget, coming):
            return True
        less = self.pages.in_whole_blocks(sequence, cached, idle)
        return less[0] < cached and self._admit_after(sequence, *less, budget, coming)

    def _admit_after(
        self, sequence: Sequence, cached: int, idle: int, budget: int, coming: int
    ) -> bool:
        """Admit a prompt after its first `cached` tokens, which hold `idle` pages."""
        missing = sequence.tokens - cached
        chunk = self._chunk(missing, budget)
        if chunk < missing and not self.policy.chunked_prefill:
            return False
        pages = self._needed(sequence, cached + chunk)
        needed = pages if self.reserve is None else self._reserved(sequence, pages, coming)
        needed += idle - cached // self.page_size
        if not self._find(needed):
            return False
        if cached:
            self.pages.use(sequence, cached)
            sequence.computed = cached
        self._take(sequence, chunk, pages)
        return True

    def _adopt(self, sequence: Sequence, clock: int, coming: int) -> bool:
        """Let a sequence decode whose cache came from another replica, if its pages find room."""
        pages = self._needed(sequence, sequence.tokens)
        needed = pages if self.reserve is None else self._reserved(sequence, pages, coming)
        if not self._find(needed):
            return False
        self.join(sequence, clock)
        self.answers.append((sequence.answered_ps, 1))
        sequence.computed = 0
        self.adopted.append(sequence)
        return True

    def _reserved(self, sequence: Sequence, pages: int, coming: int) -> int:
        """Return the pages that have to be free for a sequence to be admitted with a reserve.

        coming: tokens for which the prompts of the step will take pages.

        The tokens that others miss are those since one of them came or went: a prompt that finds no
        room then finds none later, while pages are taken.
        """
        assert self.reserve is not None
        whole = sequence.tokens + sequence.left - 1 + self.drafted
        missing = self.ends - self.since * len(self.decoding)
        return max(pages, self.pages.of(whole + coming + int(self.reserve * missing)))

    def _coming(self, sequence: Sequence) -> int:
        """Return the tokens of a prompt and its answer for which it has no pages yet."""
        return sequence.tokens + sequence.left - sequence.computed - sequence.chunk
