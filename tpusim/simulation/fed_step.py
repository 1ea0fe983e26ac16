"""A simulated step beside the hosts that feed it.

The step runs as ever and always takes as long, so its hosts are simulated beside steps of that
length (`engine.hosts`), and what the devices wait for in the steady state is added at its end.
"""

from collections.abc import Iterator
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.costs import INPUT, ON_HOST
from tpusim.engine import HostRun, Record, Timeline, feed
from tpusim.plan import Input
from tpusim.results import EXPOSED, PICO, InputUse, PlanResult, breakdown_ps, link_shares
from tpusim.simulation.input_pipeline import COPY, fill_seconds, held_bytes, host_lines, host_part

STEADY_STEPS, VARIED_STEPS = 1000, 200
"""Steps that are simulated at most: until the steps repeat, and where reads vary."""


def fed(result: PlanResult, given: Input) -> PlanResult:
    """Return a result whose devices wait for their batches.

    Raise PlanError for what the hosts cannot do (`host_lines`).
    """
    pod = result.pod
    part = host_part(result.model, result.plan, pod, given, result.programs[0])
    lines = host_lines(pod, given, part)
    before = result.timeline
    most = VARIED_STEPS if given.read_variation else STEADY_STEPS
    run = feed(lines, before.total_ps, given.prefetch, given.seed, most)
    waited_ps = run.step_ps - before.total_ps
    uses = [use for use in run.uses if use.host == run.last]
    kinds = [line.name for line in lines for _ in range(line.alike if given.read_variation else 1)]
    busy = {use.name: use.busy for use in uses}
    starved_by = max(busy, key=lambda stage: busy[stage]) if waited_ps else ""
    copied_s = result.breakdown_s.get(f"{EXPOSED}{INPUT}", 0.0)
    use = InputUse(
        given=given,
        hosts=part.hosts,
        records=part.records,
        steady=run.steady,
        period=run.steps,
        simulated=run.simulated,
        host=kinds[run.last],
        busy=busy,
        starved_by=starved_by or (COPY if copied_s else ""),
        exposed_s=waited_ps * PICO + copied_s,
        first_batch_s=run.first_ps * PICO + fill_seconds(pod, given, part),
        held_bytes=held_bytes(given, part),
    )
    timeline = _fed_timeline(before, run, starved_by)
    return replace(
        result,
        step_time_s=timeline.total_ps * PICO,
        breakdown_s={label: ps * PICO for label, ps in breakdown_ps(timeline).items()},
        link_use=link_shares(timeline),
        timeline=timeline,
        input=use,
    )


def _fed_timeline(before: Timeline, run: HostRun, starved_by: str) -> Timeline:
    """Return the timeline with the hosts' stages, and the wait for the batch at its end."""
    start, end = before.total_ps, run.step_ps
    tasks = [*before.tasks, *_host_records(run, end)]
    if not starved_by:
        return replace(before, tasks=tuple(tasks))
    waits = tuple(
        Record(lane, starved_by, INPUT, Phase.FORWARD, ON_HOST, start, end)
        for lane in range(len(before.lanes))
    )
    dispatched = max((wait.end_ps for wait in before.waits if wait.stream == ON_HOST), default=0)
    made = [
        Record(lane, starved_by, INPUT, Phase.FORWARD, ON_HOST, dispatched, end)
        for lane in range(len(before.lanes))
    ]
    if not dispatched:
        tasks = [task for task in tasks if task.stream != ON_HOST]
    return replace(
        before,
        total_ps=end,
        lanes=tuple((name, end) for name, _ in before.lanes),
        tasks=(*tasks, *made),
        waits=(*before.waits, *waits),
    )


def _host_records(run: HostRun, end: int) -> Iterator[Record]:
    """Yield the work of the stages of the host that is waited for, in the last step of a period."""
    for use in run.uses:
        if use.host == run.last:
            for start, stop in use.spans:
                stream = f"{ON_HOST} {use.name}"
                if start < end:
                    yield Record(0, use.name, INPUT, Phase.FORWARD, stream, start, min(stop, end))
