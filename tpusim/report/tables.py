"""`operations.csv` and `transfers.csv`: what the core did, and what went over the links.

Times are seconds with twelve decimals: the engine's picoseconds, exactly.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import chain

from tpusim.engine.timeline import Record
from tpusim.program import Collective, Transfer, counted
from tpusim.report.slices import operation_of
from tpusim.result import Result

OPERATIONS = ("name", "phase", "label", "does", "count", "start_s", "duration_s", "total_s")
TRANSFERS = (
    *("name", "phase", "stream", "kind", "axes", "mode", "algorithm", "dtype", "bytes", "asked"),
    *("count", "start_s", "duration_s", "total_s"),
)
PICO_DIGITS = 12


def operations(result: Result) -> str:
    """The core's time, in order of start: what it runs, and what it waits for.

    `total_s` sums to the step time. `start_s` is that of the first of `count` times.
    """
    core = ((record, "runs") for record in result.shown.tasks if record.stream == "core")
    waits = ((record, "waits") for record in result.shown.waits)
    records = sorted(chain(core, waits), key=lambda entry: entry[0].start_ps)
    rows = ((r.name, str(r.phase), r.label, does, *_times(r)) for r, does in records)
    return _csv(OPERATIONS, rows)


def transfers(result: Result) -> str:
    """All collectives and host transfers, also those that the core itself waits in.

    `bytes` is the full tensor on one device, as in `Collective`, each of `count` times. A
    collective has a row for each of its parts: transfers within the slice, additions after them,
    and across slices.
    """
    moving = {
        op.name: op
        for op, _ in counted(result.program.body, result.program.segments)
        if isinstance(op, Collective | Transfer)
    }
    records = sorted(result.shown.tasks, key=lambda record: record.start_ps)
    rows = (
        (r.name, str(r.phase), r.stream, *_described(op), *_times(r))
        for r in records
        if (op := moving.get(operation_of(r)))
    )
    return _csv(TRANSFERS, rows)


def _described(op: Collective | Transfer) -> tuple[str, ...]:
    if isinstance(op, Transfer):
        return (str(op.kind), "", "async", "", "", _number(float(op.bytes)), "yes")
    asked = "yes" if op.asked else "no"
    size = _number(float(op.bytes))
    return (str(op.kind), "+".join(op.axes), str(op.mode), op.algorithm, op.dtype, size, asked)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _times(record: Record) -> tuple[str, ...]:
    spans = (record.start_ps, record.duration_ps, record.total_ps)
    return (str(record.count), *map(seconds, spans))


def seconds(picoseconds: int) -> str:
    """Whole picoseconds as decimal seconds, exactly.

    >>> seconds(21_570_000_000_001)
    '21.570000000001'
    """
    digits = str(picoseconds).rjust(PICO_DIGITS + 1, "0")
    return f"{digits[:-PICO_DIGITS]}.{digits[-PICO_DIGITS:]}"


def _csv(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(chain([head], rows))
    return text.getvalue()
