"""The policy of a serving engine: its limits, its scheduler, and its host."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Priority: TypeAlias = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How an engine schedules the requests of one replica.

    engine, version: whose policy it is, in words.
    max_num_seqs: sequences that run at a time, of each data-parallel rank.
    max_num_batched_tokens: tokens of a step, of each data-parallel rank.
    ranks: data-parallel ranks of the replica, each with requests and pages of its own. They step
        together.
    max_model_len: tokens of a sequence, prompt and output; 0 for no limit.
    page_size: tokens of a page of the cache.
    pages: pages of each rank.
    chunked_prefill: a prompt may be computed in several steps.
    mixed: prompts and decoding sequences share steps; otherwise a step has one kind.
    priority: where steps have one kind, which is first. "prefill" computes prompts whenever one
        finds room; "decode" does where nothing decodes, so a batch is decoded to its end.
    reserve: None admits a prompt if the pages of its first chunk are free, as vLLM does. A number
        admits it if pages are free for all of it and its answer, and for this part of the tokens
        that decoding sequences will still generate, as SGLang does (`new_token_ratio`).
    prefix_cache: pages of equal prefixes are computed once.
    host_ps: time of the host between two steps, with which no device computes.
    schedule_ps: time of the host for a step beside the devices, which compute the step before it:
        no step takes less. 0 where the host does nothing beside them.
    sequence_ps: time of the host for each sequence that computes: beside the devices where
        `schedule_ps` is, otherwise between two steps.
    request_ps: time of the host for a request (HTTP, tokens), all of it before it is scheduled.
    hold_ps: longest time for which requests are held to begin side by side, one in each rank; 0
        where they are not. See `HeldRequests`.
    drafted: tokens that speculation drafts for each sequence and step; 0 for none.
    accepted: mean tokens that a sequence receives in a step with speculation, from 1 to
        `drafted + 1`. All sequences receive equally many; see `TokenClock`.
    """

    engine: str = ""
    version: str = ""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    ranks: int = 1
    max_model_len: int = 0
    page_size: int = 128
    pages: int
    chunked_prefill: bool = True
    mixed: bool = True
    priority: Priority = "decode"
    reserve: float | None = None
    prefix_cache: bool = False
    host_ps: int = 0
    schedule_ps: int = 0
    sequence_ps: int = 0
    request_ps: int = 0
    hold_ps: int = 0
    drafted: int = 0
    accepted: float = 1.0

    def host(self, sequences: int) -> tuple[int, int]:
        """Return the time of the host between two steps, and the least time of a step.

        sequences: that compute in the step, of all ranks.
        """
        each = sequences * self.sequence_ps
        if self.schedule_ps:
            return self.host_ps, self.schedule_ps + each
        return self.host_ps + each, 0

    @property
    def slots(self) -> int:
        """Sequences that run at a time: in a mixed step, each has its tokens."""
        if not self.mixed:
            return self.max_num_seqs
        return min(self.max_num_seqs, self.max_num_batched_tokens // (1 + self.drafted))
