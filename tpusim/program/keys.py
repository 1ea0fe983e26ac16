"""How many keys the queries of an attention kernel see."""

from tpusim.program.numeric import largest, smallest
from tpusim.program.work import Attention, Number


def seen_keys(work: Attention) -> Number:
    """Keys that a query sees, on average.

    All: `kv`. Causal: `kv / 2`, or `kv - q / 2` where the q queries are the last of the sequence. A
    causal window of w: `w - d^2 / (2 n)`, since the first d of n queries see fewer: w of all kv; of
    the last q, those whose window reaches back beyond the first key. Any other window: w.
    """
    queries = work.q_len if work.late else work.kv_len
    if not work.window:
        return work.kv_len - queries / 2 if work.causal else work.kv_len
    window = smallest(work.kv_len, work.window)
    short = largest(window - work.kv_len + queries, 0) if work.causal else 0.0 * window
    return window - short * short / (2 * queries)
