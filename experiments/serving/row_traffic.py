"""The traffic of a row: how requests arrive, and how long they are."""

import math
import re

from serving_row import ServingRow

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import cut
from tpusim.traffic import Lengths, Traffic

ROUNDS = 10
"""Requests of each user of a closed loop, where a row does not state them, as InferenceX sends:
`num_prompts = concurrency * 10` (SemiAnalysisAI/InferenceX, benchmarks)."""

OPEN_REQUESTS = 1000
"""Requests of other traffic: the default of `vllm bench serve --num-prompts`."""

_UNIFORM = re.compile(r"uniform\[([\d.]*)(L?),([\d.]*)(L?)\]")

SHAREGPT = {"in": 161.31, "out": 337.99}
"""Mean tokens of prompts and answers of ShareGPT. Source: arXiv:2309.06180, Figure 11."""

SPREAD = 1.0
"""Standard deviation of the logarithm of lengths of conversations: assumed."""


def row_traffic(row: ServingRow, assumed: list[str], output: int | None = None) -> Traffic:
    """Return the traffic of a row.

    assumed: what the row does not state is added to it, in words.
    output: tokens of each answer, in place of the row's.

    Raise PlanError for traffic that cannot be made.
    """
    lengths = {
        "prompt": _lengths(row, "in", assumed),
        "output": _lengths(row, "out", assumed) if output is None else output,
    }
    arrival = row.text("arrival", "closed")
    users = row.whole("concurrency")
    if arrival == "closed":
        if not users:
            raise PlanError("arrival is closed, but no concurrency is stated; write one")
        requests = _requests(row, ROUNDS * users, assumed)
        return Traffic.closed_loop(users=min(users, requests), requests=requests, **lengths)
    requests = _requests(row, OPEN_REQUESTS, assumed)
    if arrival in ("burst", "offline"):
        return Traffic.burst(requests=requests, **lengths)
    if arrival == "poisson":
        return Traffic.poisson(rate=row.number("request_rate"), requests=requests, **lengths)
    raise PlanError(f"arrival is {cut(arrival)!r}; write closed, burst, offline, poisson or static")


def _requests(row: ServingRow, default: int, assumed: list[str]) -> int:
    if stated := row.whole("num_requests"):
        return stated
    assumed.append(f"{default} requests")
    return default


def _lengths(row: ServingRow, side: str, assumed: list[str]) -> int | Lengths:
    """Return the lengths of prompts (`in`) or answers (`out`)."""
    length, mean = row.whole(f"{side}_len"), row.number(f"{side}_mean")
    kind = row.text(f"{side}_dist")
    if not kind:
        assumed.append(f"{side}_dist fixed")
    if kind in ("", "fixed", "ends at EOS"):
        if not (mean or length):
            raise PlanError(f"neither {side}_len nor {side}_mean is stated; write one")
        return round(mean or length)
    if found := _UNIFORM.fullmatch(kind):
        low = float(found[1] or 1) * (length if found[2] else 1)
        high = float(found[3] or 1) * (length if found[4] else 1)
        return Lengths.uniform(max(int(low), 1), round(high))
    if kind.startswith("sharegpt"):
        most = int(kind.rpartition("max")[2] or 1024)
        tokens = mean or SHAREGPT[side]
        assumed.append(f"{side}: log-normal, mean {tokens:g} before the cut at {most}")
        middle = tokens / math.exp(SPREAD**2 / 2)
        return Lengths.log_normal(middle, mean=tokens, most=most)
    raise PlanError(f"{side}_dist is {cut(kind)!r}, whose lengths are not known")
