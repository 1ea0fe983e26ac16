"""`operations.csv`, `transfers.csv` and `lines.csv`: the work of the core and the transfers.

Times are seconds with twelve decimals: the engine's picoseconds, exactly.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain

from tpusim.base.csv_cells import cell_text
from tpusim.base.phase import Phase
from tpusim.costs import CostedProgram
from tpusim.engine import Record
from tpusim.program import Call, Collective, Program, Send, Transfer, walk_ops
from tpusim.results import Result, explain_lines, operation_of

OPERATION_COLUMNS = ("name", "phase", "label", "does", "count", "start_s", "duration_s", "total_s")
TRANSFER_COLUMNS = (
    *("name", "phase", "stream", "kind", "axes", "mode", "algorithm", "dtype", "bytes", "asked"),
    *("count", "start_s", "duration_s", "total_s"),
)
LINE_COLUMNS = (
    *("line", "library_line", "function", "scope", "total_s", "share"),
    *(f"{phase}_s" for phase in Phase),
    "does",
)
STAGE_COLUMN = "stage"
PICO_DIGITS = 12


def operations_csv(result: Result) -> str:
    """Return the tasks and the waits of the core, in order of start.

    `total_s` sums to the step time. `start_s` is that of the first of `count` times. With a
    program for each stage of a pipeline, each row has its stage, whose rows sum to the step.
    """
    rows: list[Sequence[str]] = []
    for stage, (tasks, waits) in zip(result.reported_lanes, _by_stage(result), strict=True):
        core = ((record, "runs") for record in tasks if record.stream == "core")
        records = chain(core, ((wait, "waits") for wait in waits))
        rows += (
            (str(stage), r.name, str(r.phase), r.label, does, *_times(r))
            for r, does in sorted(records, key=lambda entry: entry[0].start_ps)
        )
    return _staged(OPERATION_COLUMNS, rows, result)


def transfers_csv(result: Result) -> str:
    """Return all collectives and host transfers, including synchronous ones.

    `bytes` is the full tensor on one device, as in `Collective`, each of `count` times. A
    collective has a row for each of its parts: transfers within the slice, additions after them,
    and across slices. Messages between stages are of kind `send`, each row with its stage.
    """
    costed = result.costed()
    rows: list[Sequence[str]] = []
    for stage, (tasks, _) in zip(result.reported_lanes, _by_stage(result), strict=True):
        moving = _moving(result.program_of(stage), costed[stage])
        rows += (
            (str(stage), r.name, str(r.phase), r.stream, *_described(op), *_times(r))
            for r in sorted(tasks, key=lambda record: record.start_ps)
            if (op := moving.get(operation_of(r)))
        )
    return _staged(TRANSFER_COLUMNS, rows, result)


def lines_csv(result: Result) -> str:
    """Return the core's time by line of the user's code, or by scope, the most expensive first.

    A line that calls a package has a row for each of the package's lines beneath it. `total_s` sums
    to the step time. `does` is the row's time by label, the longest first.
    """
    rows = (
        (
            line.place,
            *((row.place, row.function) if line.library else ("", "")),
            row.scope,
            f"{row.seconds:.{PICO_DIGITS}f}",
            f"{row.seconds / result.step_time_s:.6f}",
            *(f"{row.phases_s.get(phase, 0.0):.{PICO_DIGITS}f}" for phase in Phase),
            "; ".join(f"{label} {s:.{PICO_DIGITS}f}" for label, s in row.does_s.items()),
        )
        for line in explain_lines(result).rows
        for row in line.library or (line,)
    )
    return csv_text(LINE_COLUMNS, rows)


def _by_stage(result: Result) -> Iterator[tuple[list[Record], list[Record]]]:
    """Yield the tasks and the waits of each stage, or of the one lane that is reported."""
    for lane in result.reported_lanes:
        yield (
            [task for task in result.timeline.tasks if task.lane == lane],
            [wait for wait in result.timeline.waits if wait.lane == lane],
        )


def _moving(program: Program, costed: CostedProgram) -> dict[str, Collective | Transfer | Send]:
    """Return the operations that move data, by the name of their task."""
    ops = (op for op, _ in walk_ops(program.body, program.segments))
    found = {op.name: op for op in ops if isinstance(op, Collective | Transfer)}
    calls = (op for op in program.body if isinstance(op, Call))
    sends = {(call.segment, s.to, float(s.bytes)): s for call in calls for s in call.sends}
    messages = {
        each.task.name: sends[each.segment, each.to, each.bytes] for each in costed.messages
    }
    return {**found, **messages}


def _described(op: Collective | Transfer | Send) -> tuple[str, ...]:
    size = _number(float(op.bytes))
    match op:
        case Transfer():
            return (str(op.kind), "", "async", "", "", size, "yes")
        case Send():
            return ("send", "+".join(op.axes), "async", "", op.dtype, size, "yes")
    asked = "yes" if op.asked else "no"
    return (str(op.kind), "+".join(op.axes), str(op.mode), op.algorithm, op.dtype, size, asked)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _times(record: Record) -> tuple[str, ...]:
    spans = (record.start_ps, record.duration_ps, record.total_ps)
    return (str(record.count), *map(decimal_seconds, spans))


def decimal_seconds(picoseconds: int) -> str:
    """Return whole picoseconds as decimal seconds, exactly.

    >>> seconds(21_570_000_000_001)
    '21.570000000001'
    """
    digits = str(picoseconds).rjust(PICO_DIGITS + 1, "0")
    return f"{digits[:-PICO_DIGITS]}.{digits[-PICO_DIGITS:]}"


def _staged(head: Sequence[str], rows: Iterable[Sequence[str]], result: Result) -> str:
    """Return the table of rows that begin with their stage; without it if there is only one."""
    if len(result.programs) > 1:
        return csv_text((STAGE_COLUMN, *head), rows)
    return csv_text(head, (row[1:] for row in rows))


def csv_text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. No cell begins as a formula, and none has control characters."""
    text = StringIO()
    table = chain([head], (map(cell_text, row) for row in rows))
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()
