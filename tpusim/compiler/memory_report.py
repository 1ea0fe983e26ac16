"""The TPU compiler's report of HBM: its buffer assignment, or the summary of an executable.

The total of the memory usage report decides whether a program fits: of an MLP that grows on v5e,
whose programs may take 15.75 GiB, the compiler accepts 15.725 GiB by that total and refuses
15.76, and 15.721 and 15.78 where 0.375 GiB of it are outputs of their own (libtpu 0.0.42.1). The
`temp_size_in_bytes` of `memory_analysis()` also counts memory on the chip, so that arguments,
temporaries and outputs add up to more.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpusim.compiler.compiled import MemoryReport

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)", re.MULTILINE)
_TOTAL_BYTES = re.compile(r"color=0\)\nTotal bytes: (\d+)")


def memory_report(dump: Path, stats: Any) -> MemoryReport:
    """Return the report of one compilation.

    dump: the folder given as `xla_dump_to`.
    stats: the executable's `memory_analysis()`, for aliased outputs, and for all if the dump has no
        buffer assignment.
    """
    found = dumped_report(dump)
    if found is None:
        return summary_report(stats)
    return replace(found, aliased=stats.alias_size_in_bytes)


def dumped_report(dump: Path) -> MemoryReport | None:
    """Return the report of a dump alone; None if it has no buffer assignment."""
    texts = [_text(dump, kind) for kind in ("buffer-assignment", "memory-usage-report")]
    total = _TOTAL_BYTES.search(texts[1] or "")
    if texts[0] is None or total is None:
        return None
    arguments, outputs, aliased, host = _sizes(texts[0])
    return MemoryReport(
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        heap=int(total[1]) - arguments - outputs,
        total=int(total[1]),
        host=host,
    )


def summary_report(stats: Any) -> MemoryReport:
    """Return the report of `memory_analysis()` alone; its peak is near the total.

    Its parts are not, so what is neither argument nor output counts as heap, up to the peak.
    """
    arguments, aliased = stats.argument_size_in_bytes, stats.alias_size_in_bytes
    outputs = stats.output_size_in_bytes - aliased
    total = max(stats.peak_memory_in_bytes, arguments + outputs)
    return MemoryReport(
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        heap=total - arguments - outputs,
        total=total,
        host=stats.host_temp_size_in_bytes,
        exact=False,
    )


def _text(dump: Path, kind: str) -> str | None:
    files = sorted(dump.glob(f"*{kind}.txt"), key=lambda file: file.stat().st_size)
    return files[-1].read_text("utf-8", "replace") if files else None


def _sizes(assignment: str) -> tuple[int, int, int, int]:
    """Return bytes of arguments, of outputs with memory of their own and in that of arguments.

    And of all on the host.
    """
    arguments = outputs = aliased = host = 0
    for size, what in ((int(m[1]), m[2]) for m in _ALLOCATION.finditer(assignment)):
        host += size if what.startswith("color 5, preallocated-temp") else 0
        argument = "parameter" in what and "color" not in what
        output = "maybe-live-out" in what
        arguments += size if argument else 0
        aliased += size if argument and output else 0
        outputs += size if output and "parameter" not in what else 0
    return arguments, outputs, aliased, host
