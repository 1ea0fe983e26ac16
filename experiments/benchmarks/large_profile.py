"""How long a large profile takes to read, and how much memory: an XSpace and a trace of any size.

    python experiments/benchmarks/large_profile.py [MEGABYTES]

writes each into a temporary folder, reads it in a process of its own, and prints seconds, those of
CPU among them, and peak memory (Linux). Events are as those of real files: seven statistics each in
an XSpace, and 870 characters in a trace, of which gzip leaves a twelfth.
"""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from tpusim.profiles.xspace_schema import Event, Line, Plane, Space

DEVICES, KINDS, LAYERS = 4, 800, 40
LINES = ("XLA Ops", "XLA Modules")
UNZIPPED = 12
"""Bytes of a trace over those of its gzip, in real ones; those written here have 25."""

FACTS = (
    "device_offset_ps",
    "device_duration_ps",
    "flops",
    "model_flops",
    "bytes_accessed",
    "x",
    "y",
)
READ = """
import sys, time
from pathlib import Path
from tpusim.profiles import read_profile
begin = time.perf_counter(), time.process_time()
profile = read_profile(sys.argv[1])
str(profile)
seconds = time.perf_counter() - begin[0], time.process_time() - begin[1]
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(len(profile.operations), *(round(each, 1) for each in seconds), round(int(peak) / 2**20, 2))
"""


def line_of(kind: int) -> str:
    """Return an HLO line of a usual length."""
    shape = f"bf16[8192,{128 * (kind % 7 + 1)}]{{1,0:T(8,128)(2,1)}}"
    operands = ", ".join(f"{shape} %p.{at}" for at in range(5))
    result = f"%fusion.{kind} = bf16[8192,4096]{{1,0:T(8,128)(2,1)S(1)}}"
    return f"{result} fusion({operands}), kind=kOutput, calls=%fused.{kind}"


def happened(count: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield line, kind, start and duration of events: steps of loops of layers."""
    now, at = 10**11, 0
    while at < count:
        begin = now
        inside = KINDS * 1_000_000 * LAYERS
        yield "XLA Ops", KINDS, begin, inside
        for _ in range(LAYERS):
            for kind in range(KINDS):
                yield "XLA Ops", kind, now, 1_000_000
                now += 1_000_000
        yield "XLA Modules", KINDS + 1, begin, inside + 10**6
        now += 2_000_000
        at += KINDS * LAYERS


def write_xspace(path: Path, size: int) -> None:
    """Write an XSpace of so many bytes."""
    space = Space()
    for device in range(DEVICES):
        plane = Plane(name=f"/device:TPU:{device}".encode())
        for number, name in enumerate(FACTS, 1):
            plane.statistics.add(key=number).value.name = name.encode()
        lines = {name: Line(name=name.encode()) for name in LINES}
        for name, kind, start, lasts in happened(size // DEVICES // 86):
            event = Event(kind=kind + 1, offset_ps=start, duration_ps=lasts)
            for number, value in enumerate((start, lasts, 2**35, 2**35, 2**24, 5, 7), 1):
                event.stats.add(kind=number, uint64=value)
            lines[name].events.append(event.SerializeToString())
        for kind in range(KINDS):
            entry = plane.events.add(key=kind + 1)
            entry.value.name = line_of(kind).encode()
            entry.value.display_name = f"fusion.{kind}".encode()
        for kind, name in ((KINDS, "while.1"), (KINDS + 1, "jit_step(1)")):
            plane.events.add(key=kind + 1).value.name = name.encode()
        plane.lines.extend(line.SerializeToString() for line in lines.values())
        space.planes.append(plane.SerializeToString())
    path.write_bytes(space.SerializeToString())


def write_trace(path: Path, size: int) -> None:
    """Write a trace that has so many bytes unzipped."""
    with gzip.open(path, "wt", 1) as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [')
        for device in range(DEVICES):
            named = [("process_name", f"/device:TPU:{device}")]
            named += [("thread_name", line) for line in LINES]
            for thread, (what, name) in enumerate(named):
                names = {"ph": "M", "name": what, "args": {"name": name}}
                file.write(json.dumps(names | {"pid": device, "tid": thread}) + ",")
        for device in range(DEVICES):
            for event in happened(size // DEVICES // 870):
                file.write(json.dumps(complete(device, *event)) + ",")
        file.write("{}]}")


def complete(device: int, line: str, kind: int, start: int, lasts: int) -> dict[str, Any]:
    """Return an event of a trace."""
    facts = {} if kind >= KINDS else {
        "long_name": line_of(kind), "hlo_category": "convolution fusion",
        "model_flops": str(2**35), "raw_bytes_accessed": str(2**24),
        "source": "/home/x/y/model.py:12", "tf_op": "jit(step)/model/layer/dot_general:",
        "device_offset_ps": str(start), "device_duration_ps": str(lasts),
    }  # fmt: skip
    name = {KINDS: "while.1", KINDS + 1: "jit_step(1)"}.get(kind, f"fusion.{kind}")
    return {
        "ph": "X", "pid": device, "tid": 1 + LINES.index(line), "name": name, "ts": start / 1e6,
        "dur": lasts / 1e6, "args": facts,
    }  # fmt: skip


WRITERS = {write_xspace: "large.xplane.pb", write_trace: "large.trace.json.gz"}


def main() -> None:
    """Measure both."""
    size = int(sys.argv[1] if len(sys.argv) > 1 else 200) * 10**6
    with TemporaryDirectory() as folder:
        for write, name in (
            (write_xspace, "large.xplane.pb"),
            (write_trace, "large.trace.json.gz"),
        ):
            path = Path(folder) / name
            begin = perf_counter()
            write(path, size if write is write_xspace else UNZIPPED * size)
            wrote = perf_counter() - begin
            run = [sys.executable, "-c", READ, str(path)]
            events, seconds, cpu, memory = subprocess.run(
                run, capture_output=True, text=True, check=True
            ).stdout.split()
            print(
                f"{name}: {path.stat().st_size / 1e6:.0f} MB, {int(events):,} operations: "
                f"{seconds} s, of which {cpu} s of CPU, {memory} GiB (written in {wrote:.0f} s)"
            )


if __name__ == "__main__":
    main()
