"""What a search for servers found: a short report, and plain data."""

from collections.abc import Iterator, Sequence
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.base.text_table import folded_table
from tpusim.base.text_width import unbroken
from tpusim.base.units import format_dollars
from tpusim.serving.configuration import shown as shown_key
from tpusim.serving.result import SATURATED
from tpusim.serving.search.found_server import (
    COST,
    HEADS,
    FoundServer,
    ServerSearch,
    objective_words,
)
from tpusim.serving.search.server_space import ServerSpace
from tpusim.serving.search.targets import LATENCIES, OUTPUT, shown, title

INDENT = " " * 12
SHOWN_SERVERS, SHOWN_REASONS = 10, 4


def server_search_facts(found: ServerSearch) -> dict[str, Any]:
    """Return what a search found, as plain data. How long it took is not in it."""
    return {
        "targets": found.targets.given(),
        "objectives": list(found.objectives),
        "verdict": found.verdict,
        "servers": found.servers,
        "left_out": dict(found.left_out),
        "best": [each.facts() for each in found.best],
        "nearest": None if found.nearest is None else found.nearest.facts(),
        "tried": [each.facts() for each in found.tried],
    }


def server_search_text(
    found: ServerSearch, space: ServerSpace, model: str, *, timed: bool = False
) -> str:
    """Return the counts, what is proved, the best servers, and how to start the first one.

    model: its name, also in the command.
    timed: say also how long the search took.
    """
    return "\n".join(_lines(found, space, model, timed))


def _lines(found: ServerSearch, space: ServerSpace, model: str, timed: bool) -> Iterator[str]:
    slices = f"{len(space.pods)} slice{'s' * (len(space.pods) > 1)}"
    took = f", in {found.seconds:.1f} s" if timed else ""
    what = f"{found.servers:,} servers of {model} on {slices}{took}"
    yield from unbroken(what, "search      ", INDENT)
    yield from unbroken(f"targets: {found.targets}", INDENT, INDENT)
    if found.left_out:
        yield f"{INDENT}{sum(found.left_out.values()):,} are ruled out:"
        for why, count in [*found.left_out.items()][:SHOWN_REASONS]:
            yield from unbroken(f"- {count:,}: {why}", INDENT, INDENT)
        if len(found.left_out) > SHOWN_REASONS:
            yield f"{INDENT}- and {len(found.left_out) - SHOWN_REASONS:,} more reasons"
    yield from unbroken(f"{len(found.tried):,} simulated with all requests", INDENT, INDENT)
    yield from unbroken(found.verdict, INDENT, INDENT)
    listed = found.best or tuple(filter(None, [found.nearest]))
    if not listed:
        return
    yield ""
    yield _head(found)
    yield from folded_table(list(_cells(listed[:SHOWN_SERVERS], found, space)), 1, "  ")
    if len(listed) > SHOWN_SERVERS:
        yield f"  and {len(listed) - SHOWN_SERVERS:,} more (--out writes them all)"
    if found.best:
        yield ""
        yield from unbroken(started(found.best[0], model), "start       ", INDENT)


def _head(found: ServerSearch) -> str:
    if not found.best:
        return "the nearest server"
    if len(found.objectives) > 1:
        names = " and ".join(name.replace("_", " ") for name in found.objectives)
        return f"the Pareto front of {names}"
    return "the best servers"


def started(found: FoundServer, model: str) -> str:
    """Return the command of a server, or why there is none."""
    try:
        return str(found.configuration.command(model))
    except TpusimError as error:
        return f"no command: {error}"


def _cells(
    listed: Sequence[FoundServer], found: ServerSearch, space: ServerSpace
) -> Iterator[Sequence[str]]:
    keys = ["mesh", *(key for key in space.vary if key != "replicas")]
    more = [name for name in found.objectives if name not in (*LATENCIES, COST)]
    times = dict.fromkeys([*found.targets.given(), "ttft_p99_s", "tpot_s", OUTPUT])
    heads = [HEADS[COST], *(HEADS[name] for name in more)]
    yield ("slice", *keys, *heads, *map(title, times))
    for each in listed:
        chosen = each.configuration
        count = f"{chosen.replicas} x " if chosen.replicas > 1 else ""
        values = dict(zip(found.objectives, each.objectives, strict=True))
        usd = chosen.usd_per_hour
        yield (
            f"{count}{chosen.pod}",
            *(shown_key(key, chosen.keys[key]) for key in keys),
            "-" if usd is None else format_dollars(usd).removeprefix("$"),
            *(objective_words(name, values[name]) for name in more),
            *(_time(each, name) for name in times),
        )


def _time(found: FoundServer, name: str) -> str:
    if found.load.saturated and not name.startswith("tpot") and name != OUTPUT:
        return SATURATED
    words = shown(name, found.values[name])
    return words.removesuffix(" tokens/s out") if name == OUTPUT else words
