"""The operations of XLA on CPUs in an XSpace, which profiles of hosts without TPUs hold.

Several threads run them. The self times of operations that overlap count once, so those of an
execution still sum to the time in which any thread works.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.profiles.recorded import About, Recorded, clean
from tpusim.profiles.xspace_schema import Line

CPU, HOST_PLANE = "CPU", "/host:CPU"
ON_CPU = "a profile of CPUs: its times say nothing of TPUs"


def read_cpus(plane: Any, facts: Any, recorded: Recorded) -> None:
    """Add the CPU devices of a host's plane, with an execution of a program for each run.

    facts: yields begin, duration and statistics of each event of a packed line.
    """
    spans: dict[tuple[str, str, Any], tuple[int, int]] = {}
    for device, program, run, name, start, end in _operations(plane, facts, recorded.programs):
        events = recorded.device(device).operations
        events.add(start, end - start, events.number(About(name)))
        first, last = spans.get((device, program, run), (start, end))
        spans[device, program, run] = min(first, start), max(last, end)
    for (device, program, _), (first, last) in spans.items():
        programs = recorded.device(device).programs
        programs.add(first, last - first, programs.number(About(program)))
    if spans:
        recorded.kind, recorded.notes = CPU, (*recorded.notes, ON_CPU)
        recorded.begin_at_zero()


def _operations(
    plane: Any, facts: Any, programs: Mapping[str, bytes]
) -> Iterator[tuple[str, str, Any, str, int, int]]:
    """Yield device, program, run, name, begin and end of each operation of XLA."""
    begins = [Line.FromString(packed).timestamp_ns for packed in plane.lines]
    for at, packed in zip(begins, plane.lines, strict=True):
        for start, duration, found in facts(packed):
            if "hlo_op" not in found or "hlo_module" not in found:
                continue
            module = clean(str(found["hlo_module"]))
            program = next((name for name in programs if name.startswith(f"{module}(")), module)
            begin = 1000 * (at - min(begins)) + start
            device = clean(f"{CPU}:{found.get('device_ordinal', 0)}")
            name = clean(str(found["hlo_op"]))
            yield device, program, found.get("run_id"), name, begin, begin + duration
