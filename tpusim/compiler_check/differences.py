"""What a program does otherwise than its plan, ranked by seconds of step time, and in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.base.close_names import joined
from tpusim.base.units import format_bytes, format_seconds
from tpusim.compiler_check.compare_collectives import CollectiveTraffic, ComparedCollective
from tpusim.compiler_check.compare_parts import ComparedPart
from tpusim.compiler_check.step_names import EMBEDDING
from tpusim.results import EXPOSED

OPERATIONS_NAMED = 3
LEAST_NAMED = 0.1
"""Operations that the words on work name at most, and the least share of the difference of each."""

UNLIKE_BYTES = 0.05
LEAST_SAID = 0.01
"""Relative difference of bytes on the wire that is worth a word, and the least share of the bytes
of the embedding that is."""

SIDES = ("plan", "program")

_VERBS = {
    "all-gather": ("gather", "gathers"),
    "reduce-scatter": ("reduce-scatter", "reduce-scatters"),
    "all-reduce": ("all-reduce", "all-reduces"),
    "all-to-all": ("exchange", "exchanges"),
    "collective-permute": ("permute", "permutes"),
    "collective-broadcast": ("broadcast", "broadcasts"),
}
_TOPICS = {
    "ring": "rings",
    "sync": "synchronous collectives",
    "async": "asynchronous collectives",
}
_MANNERS = {"sync": " while the core waits", "async": " asynchronously"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of the step whose time differs between plan and program.

    what: weights or tensors, a kind of work, or the embedding.
    topic: what it has in common with others: a kind of work, the embedding, or the mode of
        collectives in the program and their axes, such as `rings over fsdp`.
    when: the pass; empty for all of the step.
    plan_s, program_s: the core's seconds of a step; the parts of a comparison sum to both steps.
    words: what the compiler does otherwise, in a sentence.
    plan_operations, program_operations: those behind it, by their names in the two programs; of
        work, those of the graph.
    """

    what: str
    topic: str
    when: str
    plan_s: float
    program_s: float
    words: str
    plan_operations: tuple[str, ...] = ()
    program_operations: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds by which the plan is slower; negative if it is faster."""
        return self.plan_s - self.program_s

    def __str__(self) -> str:
        head = ", ".join(filter(None, (self.what, self.when)))
        return f"{head}: {self.words}" if self.words else head


def ranked_differences(
    times: Sequence[ComparedPart],
    waits: Sequence[ComparedPart],
    collectives: Sequence[ComparedCollective],
) -> tuple[Difference, ...]:
    """Return the step in parts, those whose seconds differ most first.

    times: all of the core's time; of it the work is taken, as the exposed time is that of
        `collectives` and `waits`.
    """
    short = short_names(each.what for each in collectives)
    lookups = [each for each in collectives if each.what == EMBEDDING]
    found = [_work(row) for row in times if row.phase is not None]
    found += [_wait(row) for row in waits]
    found += _embedding([row for row in times if row.what == EMBEDDING], lookups)
    found += [
        _moved(alike, [short[row.what] for row in alike])
        for alike in grouped(each for each in collectives if each.what != EMBEDDING)
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.seconds)))


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """Return the last part of each name, or all of it where two would be the same."""
    names = set(names)
    shorts = [name.rsplit("/", 1)[-1] for name in names]
    return {
        name: short if shorts.count(short) == 1 else name
        for name, short in zip(names, shorts, strict=True)
    }


def _difference(part: ComparedPart, words: str, topic: str = "", when: str = "") -> Difference:
    return Difference(
        what=part.what,
        topic=topic or part.what,
        when=when,
        plan_s=part.plan,
        program_s=part.program,
        words=words,
        plan_operations=part.plan_operations,
        program_operations=part.program_operations,
    )


def _work(row: ComparedPart) -> Difference:
    return _difference(row, f"the plan takes {_against(row)}{_mostly(row)}", when=str(row.phase))


def _mostly(row: ComparedPart) -> str:
    """Return the operations that make up most of a difference, in words."""
    whole = row.difference
    shown = [part for part in row.parts if whole and part.difference / whole >= LEAST_NAMED]
    texts = [
        f"{part.what.rsplit('/', 1)[-1]} {_against(part)}" for part in shown[:OPERATIONS_NAMED]
    ]
    return f" ({', '.join(texts)})" if texts and len(row.parts) > 1 else ""


def _against(part: ComparedPart) -> str:
    """Return the seconds of both sides in words."""
    return f"{format_seconds(part.plan)} against {format_seconds(part.program)}"


def _wait(row: ComparedPart) -> Difference:
    return _difference(
        replace(row, what=f"waits for {row.what.removeprefix(EXPOSED)}"), _against(row)
    )


def _embedding(
    work: Sequence[ComparedPart], moved: Sequence[ComparedCollective]
) -> Iterator[Difference]:
    """Yield the embedding as one: its work and all that is moved for it."""
    if not work and not moved:
        return
    waits = _exposed(moved, EMBEDDING)
    whole = replace(
        waits,
        plan=sum(row.plan for row in work) + waits.plan,
        program=sum(row.program for row in work) + waits.program,
        plan_operations=sum((row.plan_operations for row in work), waits.plan_operations),
        program_operations=sum((row.program_operations for row in work), waits.program_operations),
    )
    plan, program = (_lookup_words(moved, at) for at in (0, 1))
    yield _difference(whole, f"the plan {plan}; the program {program}; {_against(whole)}")


def _exposed(rows: Sequence[ComparedCollective], what: str) -> ComparedPart:
    """Return the time for which the core waits for collectives, with their names on both sides."""
    plan_s, program_s = (sum(row.exposed_s[at] for row in rows) for at in (0, 1))
    sides = ([row.sides[at] for row in rows] for at in (0, 1))
    names = (tuple(name for one in side if one for name in one.operations) for side in sides)
    return ComparedPart(what, plan_s, program_s, None, (), *names)


def _lookup_words(moved: Sequence[ComparedCollective], at: int) -> str:
    """Return what a side moves for the embedding in each pass, without what is little."""
    whole = wire_sums(moved)[at]
    passes: dict[str, list[str]] = {}
    for row in moved:
        traffic = row.sides[at]
        if traffic is not None and traffic.wire_bytes >= LEAST_SAID * whole > 0:
            verb = _VERBS.get(traffic.kind, ("", traffic.kind))[1]
            said = f"{verb} ({_over(row.axes, traffic.wire_bytes)})"
            passes.setdefault(row.when, []).append(said)
    texts = (f"{joined(said)} {when}" for when, said in passes.items())
    return ", ".join(texts) or "moves nothing"


def _moved(alike: Sequence[ComparedCollective], names: Sequence[str]) -> Difference:
    """Return collectives of which the same can be said.

    Their topic is the mode in the program, or else in the plan, and the axes.
    """
    first, waits = alike[0], _exposed(alike, joined(names))
    side = first.program or first.plan
    assert side is not None
    topic = f"{_TOPICS.get(side.mode, side.mode)} over {'+'.join(first.axes)}"
    return _difference(waits, f"{_both_do(alike)}; exposed {_against(waits)}", topic, first.when)


def grouped(rows: Iterable[ComparedCollective]) -> list[list[ComparedCollective]]:
    """Return rows whose pass, axes, kinds, modes and algorithms are alike together.

    Those that move most are first.
    """
    groups: dict[tuple[object, ...], list[ComparedCollective]] = {}
    for row in rows:
        like = (row.when, row.axes, _state(row.plan), _state(row.program), row.what == EMBEDDING)
        groups.setdefault(like, []).append(row)
    return sorted(groups.values(), key=lambda alike: -sum(max(row.wire_bytes) for row in alike))


def _state(side: CollectiveTraffic | None) -> tuple[str, ...]:
    return () if side is None else (side.kind, side.mode, side.algorithm)


def _both_do(alike: Sequence[ComparedCollective]) -> str:
    """Return what both sides do with the tensors of rows that are alike in all but the tensor."""
    first, several, sizes = alike[0], len(alike) > 1, wire_sums(alike)
    if first.plan is None or first.program is None:
        at = 0 if first.plan else 1
        traffic = first.plan or first.program
        assert traffic is not None
        does = f"{_does(traffic, several)} ({_over(first.axes, sizes[at])})"
        return f"the {SIDES[at]} {does}; the {SIDES[1 - at]} does not"
    if (first.plan.kind, first.plan.mode) != (first.program.kind, first.program.mode):
        return (
            f"the plan {_does(first.plan, several)} ({_over(first.axes, sizes[0])}); "
            f"the program {_does(first.program, several)}"
        )
    text = f"both {_does(first.plan, several, plural=True)} ({_over(first.axes, sizes[0])}"
    if abs(sizes[1] - sizes[0]) > UNLIKE_BYTES * max(sizes):
        text += f", in the program {format_bytes(sizes[1])}"
    if first.plan.algorithm == first.program.algorithm:
        return f"{text})"
    return f"{text}), the plan as {first.plan.algorithm}, the program as {first.program.algorithm}"


def wire_sums(rows: Sequence[ComparedCollective]) -> tuple[float, float]:
    """Return the bytes on the wire of rows in the plan and in the program."""
    plan, program = (sum(row.wire_bytes[at] for row in rows) for at in (0, 1))
    return plan, program


def _does(side: CollectiveTraffic, several: bool, plural: bool = False) -> str:
    """Return what a side does with a tensor: `gathers it asynchronously`."""
    if side.mode == "ring":
        return f"{'have' if plural else 'has'} {'rings' if several else 'a ring'}"
    verb = _VERBS.get(side.kind, (f"run {side.kind} on", f"runs {side.kind} on"))[not plural]
    return f"{verb} {'them' if several else 'it'}{_MANNERS.get(side.mode, '')}"


def _over(axes: tuple[str, ...], nbytes: float) -> str:
    return f"{'+'.join(axes)}, {format_bytes(nbytes)}"
