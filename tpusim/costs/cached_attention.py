"""Seconds of attention over pages of a cache, in the steps of a server.

The kernel is ragged paged attention (vllm-project/tpu-inference 0.32.0,
kernels/ragged_paged_attention/v3): it copies whole pages of the cache to the chip, a block of keys
at a time, and multiplies them by a block of the queries of one sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tpusim.costs.attention import kernel_flops, score_seconds
from tpusim.costs.compute import copy_bandwidth, hbm_seconds, matrix_rate, vector_seconds
from tpusim.hardware import Device
from tpusim.program import AttentionLoad, AttentionWork, CachedAttentionWork, round_up

SUBLANES = 8
"""Rows of a register of 32-bit numbers: the scores of fewer queries take as long."""

ROWS_A_CYCLE = 8
"""Rows of a block of keys that enter the array in a cycle, so that a few queries wait for an eighth
of its side. Decoding takes no longer than its bytes then, as 7x shows: 135 sequences of Qwen3-32B
with a cache in fp8 decode and prefill 6,557 tokens/s on two devices (vllm-project/tpu-inference,
nightly of March 2026), where a key per column and cycle would allow 4,200."""

PAGED_SCORE = 1.9
"""Time of a score of a prompt over that of splash attention: 2.43 and 2.70 ps for 1.17 on 7x
(profiles of tpu-inference, RPA-bq_32-bkvp_32 and 64, Qwen3-32B and Qwen2.5-32B, 1024 tokens)."""

SOFTMAX_OPERATIONS = 6.6
"""Operations of the vector unit per score of a query that decodes; see `costs.attention`."""


@dataclass(frozen=True, slots=True)
class CachedAttentionRates:
    """The seconds of a kernel by what its load consists of.

    ranks, drafted, window: see `CachedAttentionWork`.
    decoded_key: arithmetic per key that a sequence sees which decodes.
    score: arithmetic per score of a prompt, of all heads of the device.
    block: queries and keys that are visited at once.
    key, query, output: HBM traffic in one direction per cached key, and per token.
    turn: per second of the shorter direction, as the bus turns (`compute.hbm_seconds`).
    page: to start the copy of a page, over the tokens of a page.
    launch: of the kernel, or of the operations in its place.
    """

    ranks: float
    drafted: int
    window: int
    decoded_key: float
    score: float
    block: tuple[int, int]
    key: float
    query: float
    output: float
    turn: float
    page: float
    launch: float

    @classmethod
    def of(cls, work: CachedAttentionWork, device: Device) -> "CachedAttentionRates":
        """Return the rates of a kernel. Raise PlanError for a dtype without a matrix rate."""
        byte = float(hbm_seconds(1.0, 0.0, device))
        like = _like(work)
        paged = PAGED_SCORE if work.operations == 1 else 1.0
        return cls(
            ranks=float(work.ranks),
            drafted=work.drafted,
            window=work.window,
            decoded_key=_decoded_key(work, like, device),
            score=paged * float(work.heads * score_seconds(like, "forward", device)),
            block=work.block,
            key=float(work.key_bytes) * byte,
            query=float(work.query_bytes) * byte,
            output=float(work.output_bytes) * byte,
            turn=2 * (1 / copy_bandwidth(device) / byte - 1),
            page=work.page_seconds,
            launch=work.operations * device.costs.op_launch,
        )

    def seconds(self, load: AttentionLoad | tuple[float, ...]) -> float:
        """Return the seconds of a load: sequences that decode, then prompts, and a launch.

        Each is `max(arithmetic, bytes / HBM + pages)`. The kernel takes one sequence after the
        other, and copies no more than its next block of keys ahead, so that pages of sequences that
        decode do not hide behind the scores of prompts.

        A block of keys is computed whole, also where the sequence ends within it: of a prompt of
        1024 tokens in blocks of 4096 keys, all 4096 (profiles of 7x, Qwen2.5-32B and Qwen3-32B).

        load: of all ranks; the numbers of an `AttentionLoad`.
        """
        decodes, context, tokens, keys, pairs = map(float, load)
        decoding = self.decoding(decodes)(context)
        if not tokens:
            return decoding
        share = 1 / self.ranks
        prefills, keys, pairs = tokens * share, keys * share, pairs * share
        if self.window:
            keys = min(keys, prefills + self.window)
            pairs = min(pairs, self.window * prefills)
        queries, block = self.block
        visited = queries if queries < prefills else prefills
        seen = pairs / prefills + (visited + block) / 2
        arithmetic = prefills * (seen if seen > block else block) * self.score
        memory = self._memory(prefills, keys)
        return decoding + (arithmetic if arithmetic > memory else memory)

    def decoding(self, decodes: float) -> Callable[[float], float]:
        """Return the seconds of so many tokens of sequences that decode, given their keys.

        All tokens and all keys are those of all ranks.
        """
        ranks, decoded_key, launch = self.ranks, self.decoded_key, self.launch
        tokens = decodes / ranks
        most = self.window * tokens / self.drafted if self.window else inf
        memory_seconds = self._memory

        def seconds(context: float) -> float:
            keys = context / ranks
            if keys > most:
                keys = most
            arithmetic, memory = keys * decoded_key, memory_seconds(tokens, keys)
            return (arithmetic if arithmetic > memory else memory) + launch

        return seconds

    def _memory(self, tokens: float, keys: float) -> float:
        """Return the seconds of HBM for tokens and the keys that their sequences see."""
        read = keys * self.key + tokens * self.query
        written = tokens * (self.key + self.output)
        turned = read if read < written else written
        return read + written + self.turn * turned + keys * self.page


def cached_attention_seconds(work: CachedAttentionWork, device: Device) -> float:
    """Return the seconds of a kernel on its load. Raise PlanError as `CachedAttentionRates.of`."""
    return CachedAttentionRates.of(work, device).seconds(work.load)


def _like(work: CachedAttentionWork) -> AttentionWork:
    """Return the work of an attention kernel of the same widths, blocks and dtype."""
    return AttentionWork(
        batch=1,
        heads=work.heads,
        q_len=work.block[0],
        kv_len=work.block[1],
        head_dim=work.head_dim,
        dtype=work.dtype,
        causal=True,
        window=0,
        backward=False,
        read_bytes=0,
        write_bytes=0,
        value_dim=work.value_dim,
        block=work.block,
    )


def _decoded_key(work: CachedAttentionWork, like: AttentionWork, device: Device) -> float:
    """Return the arithmetic per key of a sequence that decodes: `max(array, vector)`.

    A sequence has few queries, one for each head that shares a K/V head. The array multiplies each
    key by the queries, but no faster than keys enter it.
    """
    heads = float(work.kv_heads)
    rows = work.drafted * float(work.heads) / heads
    columns = max(rows, device.mxu_side / ROWS_A_CYCLE)
    flops = float(kernel_flops(like, "forward", device.mxu_side)) * columns
    array = heads * flops / matrix_rate(device, work.dtype)
    scores = heads * float(round_up(rows, SUBLANES))
    return max(array, float(vector_seconds(SOFTMAX_OPERATIONS * scores, device)))
