"""A server as a Chrome trace, for Perfetto: steps, requests, and the levels of queue and cache.

Each replica is a process whose thread `Steps` has its runs of equal steps, with counters of the
requests that wait, the sequences that decode and the pages that are taken. Requests are nested
asynchronous events (`ph` b and e) of a process of their own, each with its phases: waiting,
prefill and decode.
"""

from collections.abc import Iterator
from typing import Any

from tpusim.base.plain_text import plain
from tpusim.report.chrome_events import Event, complete, metadata, microseconds, named, packed
from tpusim.serving import ServingResult
from tpusim.serving.metrics import answered, window_ps

MOST_SPANS, MOST_SHOWN = 50_000, 5_000
"""Runs of steps, and requests, that a trace has; of more, the first."""

PHASES = ("waiting", "prefill", "decode")


def serving_trace(result: ServingResult) -> dict[str, Any]:
    """Return the trace as plain data; times in microseconds after the first request was sent."""
    served = answered(result.served)
    begin, _ = window_ps(served)
    events = [*_replicas(result, begin), *_requests(result, begin)]
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "model": plain(result.model.name),
            "slice": str(result.pod),
            "requests": f"{min(len(served.prompt), MOST_SHOWN)} of {len(served.prompt)}",
            "runs of steps": f"{min(len(served.spans.steps), MOST_SPANS)} of "
            f"{len(served.spans.steps)}",
        },
        "traceEvents": events,
    }


def serving_trace_bytes(result: ServingResult) -> bytes:
    """Return the content of `trace.json.gz`: the same result gives the same bytes."""
    return packed(serving_trace(result))


def _replicas(result: ServingResult, begin: int) -> Iterator[Event]:
    """Yield the steps and the counters of each replica."""
    for replica in range(result.replicas):
        yield metadata("process_name", replica, name=f"replica {replica}")
        yield metadata("process_sort_index", replica, sort_index=replica)
        yield from named(replica, 0, "Steps")
    spans = result.served.spans
    columns = (
        spans.start_ps, spans.end_ps, spans.replica, spans.steps, spans.decodes, spans.prefills,
        spans.pages, spans.waiting,
    )  # fmt: skip
    for row in zip(*(column[:MOST_SPANS].tolist() for column in columns), strict=True):
        start, end, replica, steps, decodes, prefills, pages, waiting = row
        about = {"steps": steps, "decodes": decodes, "prompt tokens": prefills}
        name = _step_name(steps, decodes, prefills)
        yield complete(replica, 0, name, (start - begin, end - begin), about)
        at = {"pid": replica, "tid": 0, "ph": "C"}
        when = microseconds(start - begin)
        yield {**at, "name": "waiting", "ts": when, "args": {"requests": waiting}}
        yield {**at, "name": "decoding", "ts": when, "args": {"sequences": decodes}}
        yield {**at, "name": "pages", "ts": microseconds(end - begin), "args": {"taken": pages}}


def _step_name(steps: int, decodes: int, prefills: int) -> str:
    """Return a run of steps in words.

    >>> _step_name(1, 8, 512), _step_name(30, 8, 0)
    ('prefill 512 + decode 8', '30 x decode 8')
    """
    parts = [f"prefill {prefills}"] * bool(prefills) + [f"decode {decodes}"] * bool(decodes)
    return f"{f'{steps} x ' if steps > 1 else ''}{' + '.join(parts) or 'nothing'}"


def _requests(result: ServingResult, begin: int) -> Iterator[Event]:
    """Yield the events of each request, and those of its phases inside of it."""
    served, process = answered(result.served), result.replicas
    yield metadata("process_name", process, name="requests")
    yield metadata("process_sort_index", process, sort_index=process)
    columns = (
        served.arrival_ps, served.scheduled_ps, served.first_ps, served.last_ps, served.prompt,
        served.output, served.cached, served.preemptions,
    )  # fmt: skip
    for number, row in enumerate(
        zip(*(column[:MOST_SHOWN].tolist() for column in columns), strict=True)
    ):
        *moments, prompt, output, cached, preemptions = row
        about = {"prompt": prompt, "output": output, "cached": cached, "preemptions": preemptions}
        times = [microseconds(moment - begin) for moment in moments]
        common = {"cat": "request", "id": number, "pid": process, "tid": 0}
        whole = {**common, "name": f"request {number}"}
        yield {"ph": "b", **whole, "ts": times[0], "args": about}
        for phase, start, end in zip(PHASES, times, times[1:], strict=False):
            yield {"ph": "b", **common, "name": phase, "ts": start}
            yield {"ph": "e", **common, "name": phase, "ts": end}
        yield {"ph": "e", **whole, "ts": times[-1]}
