"""A result as a short report for a terminal."""

from collections.abc import Iterable, Iterator

from tpusim.base.phase import Phase
from tpusim.base.text_entry import entry
from tpusim.base.text_table import fixed_table
from tpusim.base.text_width import PAGE_WIDTH, table_width, wrapped
from tpusim.base.units import format_bytes, format_seconds
from tpusim.results.answers import answers, need_words, odds_lines
from tpusim.results.fit import Fit
from tpusim.results.limit import LEAST_SHOWN
from tpusim.results.result import PICO, Result, core_ps

LEAST_HEAD = 28
"""Characters of a breakdown's labels at least."""

BREAKDOWN_HEAD = "where the step goes"
NUMBER_WIDTH = 11
"""Characters of a column of a breakdown."""


def summary(result: Result, ideal: Result | None = None, maxtext: Result | None = None) -> str:
    """Return a report of a result: first the answers, then where the time goes, then the details.

    A run that does not fit begins with the verdict, and with what would make it fit.

    ideal: the same run under the lowering `ideal`, for a line with its gain.
    maxtext: the same run as a program of MaxText, where one of plain JAX is assumed.
    """
    lines = _lines(result, ideal, maxtext)
    return "\n\n".join(["\n".join(lines), *map(str, result.tables())])


def _lines(r: Result, ideal: Result | None, maxtext: Result | None) -> Iterator[str]:
    if r.fit is not Fit.FITS:
        yield from entry(r.fit.upper(), verdict_reason(r))
        yield from odds_lines(r)
    if (ways := r.ways_to_fit()) is not None:
        yield from ways.lines()
    yield from wrapped(f"{r.title} ({r.pod.chips} chip{'s' * (r.pod.chips > 1)})")
    yield ""
    yield from answers(r)
    yield ""
    yield from _breakdown(r)
    yield ""
    yield from _details(r, ideal, maxtext)


def _details(r: Result, ideal: Result | None, maxtext: Result | None) -> Iterator[str]:
    """Yield what ran and where, how it is counted, and how much of what it uses."""
    for what, text in r.about():
        yield from entry(what, text)
    if found := r.defaults():
        yield from entry("defaults", _defaults(r, found, maxtext))
    yield from entry("rates", r.rates)
    yield from entry("", r.convention)
    if ideal is not None:
        yield from entry("", _gain(r, ideal))
    if r.pipeline:
        yield from entry("pipeline", r.pipeline)
    if r.fit is Fit.FITS:
        yield from entry("HBM peak", f"{format_bytes(r.hbm_peak_bytes)}: {_memory(r)}")
    yield from entry("links", _links(r))
    yield from _notes(r)


def _defaults(r: Result, found: Iterable[tuple[str, str]], maxtext: Result | None) -> str:
    """Return the defaults that decide, and what the other style gives."""
    other = ""
    if maxtext is not None:
        step = format_seconds(maxtext.step_time_s)
        other = (
            f" (MaxText's compiles otherwise: style = 'maxtext' gives {step}{_change(r, maxtext)})"
        )
    return ", ".join(text + (other if key == "style" else "") for key, text in found)


def _change(r: Result, other: Result) -> str:
    less = 1 - other.step_time_s / r.step_time_s
    if abs(less) < LEAST_SHOWN:
        return ", the same"
    return f", {abs(less):.1%} {'less' if less > 0 else 'more'}"


def _gain(r: Result, ideal: Result) -> str:
    less = 1 - ideal.step_time_s / r.step_time_s
    change = f"{less:.1%} less" if less > 0 else "no less"
    return f"a perfect compiler (lowering ideal): {format_seconds(ideal.step_time_s)}, {change}"


def _breakdown(r: Result) -> Iterator[str]:
    """Yield a row for each label and a column for each phase; both sum to the step time."""
    scale, unit = (PICO, "s") if r.step_time_s >= 1 else (PICO * 1e3, "ms")
    cells = core_ps(r.timeline)
    labels = list(dict.fromkeys(label for label, _ in cells))
    heads = (f"time [{unit}]", "share", *map(str, Phase))
    names = max([len(BREAKDOWN_HEAD), *(len(label) + 2 for label in labels)])
    width, number = max(LEAST_HEAD, names + 1), NUMBER_WIDTH
    if (table_width() or PAGE_WIDTH) < width + number * len(heads):
        width, number = names, NUMBER_WIDTH - 1
    rows = [(BREAKDOWN_HEAD, *heads)]
    for label in labels:
        phases = [cells.get((label, phase), 0) for phase in Phase]
        rows.append((f"  {label}", *_cells(phases, scale, r)))
    sums = [sum(cells.get((label, phase), 0) for label in labels) for phase in Phase]
    rows.append(("  sum", *_cells(sums, scale, r)))
    yield from fixed_table(rows, [width, *[number] * len(heads)])


def _cells(phases: Iterable[int], scale: float, r: Result) -> Iterator[str]:
    parts = list(phases)
    yield f"{sum(parts) * scale:.3f}"
    yield f"{sum(parts) / r.timeline.total_ps:.1%}"
    for part in parts:
        yield f"{part * scale:.3f}" if part else "-"


def verdict_reason(r: Result) -> str:
    """Return the reason of a verdict: the need of HBM, the capacity, and the categories."""
    return f"{verdict_need(r)}: {_memory(r)}"


def verdict_need(r: Result) -> str:
    """Return the need of HBM beside the capacity, and whether that decides anything."""
    doubt = ", so that only the compiler can tell" if r.fit is Fit.BORDERLINE else ""
    return f"needs {need_words(r)}{doubt}"


def _memory(r: Result) -> str:
    return " + ".join(f"{category} {format_bytes(n)}" for category, n in r.memory_bytes.items())


def _links(r: Result) -> str:
    """Return the links in use, both directions of a dimension as one where they agree."""
    each = {link: f"{use:.1%}" for link, use in r.link_use.items() if use >= LEAST_SHOWN}
    shown: dict[str, str] = {}
    for link, use in each.items():
        both = link[-1] in "+-" and each.get(f"{link[:-1]}+") == each.get(f"{link[:-1]}-")
        shown[link[:-1] if both else link] = use
    used = ", ".join(f"{link} {use}" for link, use in shown.items())
    return f"{used} (each collective's busiest links, over the step)" if used else "none used"


def _notes(r: Result) -> Iterator[str]:
    whole = float(r.flops.total)
    warned = {"redundant" if w.kind == "repeated work" else w.kind for w in r.warnings()}
    extra = {
        "redundant": r.flops.redundant,
        "padding": r.flops.padding,
        "the optimizer's": r.flops.optimizer,
    }
    for kind, flops in extra.items():
        share = float(flops) / whole
        if share >= LEAST_SHOWN and kind not in warned:
            yield from entry("extra work", f"{share:.1%} of all FLOPs are {kind}")
    have = r.pod.chip.host_bytes
    if have is not None and r.host_need_bytes > have:
        need = format_bytes(r.host_need_bytes)
        text = f"{need} are offloaded to each host, which has {format_bytes(have)}"
        yield from entry("note", text)
    for what, text in r.notes():
        yield from entry(what, text)
