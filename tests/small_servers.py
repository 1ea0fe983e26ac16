"""Small servers whose steps have simple costs, and columns of requests by hand."""

from typing import Any

import numpy as np

import tpusim as ts
from tpusim.plan import ServingPlan
from tpusim.results import PlanResult
from tpusim.server import Policy, Served, Spans, StepLoad, serve
from tpusim.serving import ServingResult
from tpusim.traffic import Lengths, Traffic

SECOND = 10**12
MILLISECOND = 10**9

MODEL = ts.models.Transformer(layers=2, embed=512, mlp=2048, heads=4, vocab=1000)
POD = ts.Slice("v6e", "2x2")
SERVING_PLAN = ServingPlan(mesh={"tensor": 4})


class LinearCosts:
    """Steps of 10 ms, and 0.3 ms for each sequence that decodes, 30 us for each prompt token."""

    def step_ps(self, load: StepLoad) -> int:
        """Picoseconds of one step."""
        return 10 * MILLISECOND + load.decodes * 300_000_000 + load.prefills * 30_000_000

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Picoseconds of decode steps in a row."""
        return steps * self.step_ps(StepLoad(decodes, context))


def column(*values: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Picoseconds, or counts."""
    return np.array(values, dtype=np.int64)


def spans(*rows: tuple[int, ...]) -> Spans:
    """Spans of rows (start, end, busy, steps, replica, decodes, prefills, pages, waiting)."""
    names = [*Spans.__dataclass_fields__]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names)).T
    return Spans(**dict(zip(names, table, strict=True)))


def by_hand(**columns: Any) -> Served:
    """Requests with the given columns; of the others, each is as simple as can be."""
    count = len(columns["arrival_ps"])
    usual: dict[str, Any] = {
        "scheduled_ps": columns["arrival_ps"],
        "first_ps": columns["arrival_ps"],
        "last_ps": columns.get("first_ps", columns["arrival_ps"]),
        "prompt": np.ones(count, np.int64),
        "output": np.ones(count, np.int64),
        "cached": np.zeros(count, np.int64),
        "preemptions": np.zeros(count, np.int64),
        "resumed_ps": np.full(count, -1),
        "spans": spans(),
        "gaps": (column(), column()),
        "present_ps": 0,
    }
    return Served(**{**usual, **columns})


def small_step(seq_len: int = 128) -> PlanResult:
    """A step that stands for one of the server."""
    return ts.simulate(MODEL, ts.Plan(mesh={"fsdp": 4}, seq_len=seq_len, global_batch=4), POD)


def small_traffic(rate: float = 4.0, requests: int = 120, users: int = 0) -> Traffic:
    """Prompts of 200 to 1500 tokens, with 20 to 200 generated."""
    lengths: dict[str, Any] = {
        "requests": requests,
        "prompt": Lengths.uniform(200, 1500),
        "output": Lengths.uniform(20, 200),
    }
    if users:
        return Traffic.closed_loop(users=users, **lengths)
    return Traffic.poisson(rate=rate, **lengths)


def small_result(traffic: Traffic | None = None, replicas: int = 1, **policy: Any) -> ServingResult:
    """A server of 16 sequences at a time, which answers 7 requests of `small_traffic` a second."""
    given: dict[str, Any] = {
        "engine": "vllm-tpu", "version": "0.32.0", "max_num_seqs": 16, "pages": 400,
        "host_ps": 2 * MILLISECOND,
    }  # fmt: skip
    asked = traffic or small_traffic()
    found = Policy(**{**given, **policy})
    step = small_step()
    return ServingResult.of(
        serve(asked, found, LinearCosts(), replicas=replicas), asked, found, replicas=replicas,
        model=MODEL, plan=SERVING_PLAN, pod=POD, prefill=step, decode=step, notes=("a note",),
    )  # fmt: skip
