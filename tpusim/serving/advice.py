"""Advice on a server: single changes of its run file, each simulated, by what they gain."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tpusim.base.divisors import divisors
from tpusim.base.errors import HardwareError, TpusimError
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_width import unbroken
from tpusim.hardware import Slice, default_shape, format_shape
from tpusim.models import Architecture
from tpusim.plan.serving_plan import ATTENTION_DATA, TENSOR
from tpusim.results.settings import command_line
from tpusim.serving.configuration import Configuration
from tpusim.serving.configuration import shown as shown_key
from tpusim.serving.engines.manifest import ACCELERATORS
from tpusim.serving.result import SATURATED, ServingResult, number
from tpusim.serving.search.targets import OUTPUT, Targets, metric_values, shown, title
from tpusim.traffic import Traffic

PER_DOLLAR = "tokens_per_dollar"
LATENCY = "e2e_p50_s"
MARGIN = " " * 12
SHOWN_CHANGES = 10
LEAST_GAIN = 5e-4
"""Gains below this print as 0.0 %."""

DTYPES = ("bf16", "fp8", "int8")
LARGEST_SLICE = 2
"""Times the chips of the slice: the largest other slice that is tried; the smallest is half."""


class ServerGoal(NamedTuple):
    """What changes of a server are to improve.

    name: a metric of `Targets`, or `PER_DOLLAR`.
    more: more of it is better.
    """

    name: str
    more: bool

    @property
    def waits(self) -> bool:
        """It has no meaning where the server is saturated."""
        return self.name not in (PER_DOLLAR, OUTPUT)

    @property
    def title(self) -> str:
        """The metric in words."""
        return "output tokens per dollar" if self.name == PER_DOLLAR else title(self.name)

    def shown(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{number(value)} per $" if self.name == PER_DOLLAR else shown(self.name, value)

    def gain(self, before: float, after: float) -> float:
        """Return the fraction by which a value is better; negative if it is worse."""
        change = after / before - 1
        return change if self.more else -change


@dataclass(frozen=True, slots=True)
class ServerChange:
    """A change of a server, as simulated.

    configuration: of the changed server.
    what: the change in words.
    gain: the fraction by which the goal is better.
    value: of the goal.
    saturated: requests outrun the changed server.
    goal: of the advice.
    """

    configuration: Configuration
    what: str
    gain: float
    value: float
    saturated: bool
    goal: ServerGoal

    @property
    def settings(self) -> tuple[str, ...]:
        """The change as `--set` takes it."""
        return self.configuration.settings

    def __str__(self) -> str:
        if abs(self.gain) < LEAST_GAIN:
            words = f"leaves {self.goal.title} as it is"
        else:
            way = "more" if (self.gain > 0) == self.goal.more else "less"
            words = f"{abs(self.gain):.1%} {way} {self.goal.title}"
        over = f", but it is {SATURATED}" if self.saturated else ""
        return f"{self.what}: {words}, {self.goal.shown(self.value)} (simulated){over}"

    def facts(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "what": self.what,
            "sentence": str(self),
            "settings": list(self.settings),
            "gain": self.gain,
            "value": self.value,
            SATURATED: self.saturated,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerAdvice(ShortRepr):
    """Changes of a server, the largest gain first; those that saturate it last.

    server: the simulated server.
    goal: what the changes are to improve, and why.
    why: the reason for this goal.
    value: of the goal, before any change.
    changes: those that can be simulated.
    refused: those that cannot, each with the reason.
    top: changes that are printed.
    """

    server: ServingResult
    goal: ServerGoal
    why: str
    value: float
    changes: tuple[ServerChange, ...]
    refused: tuple[tuple[str, str], ...] = ()
    top: int = SHOWN_CHANGES

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from unbroken(
            f"{self.server.title}, {self.goal.title} {self.goal.shown(self.value)} ({self.why})",
            "advice      ",
            MARGIN,
        )
        yield ""
        gained = [each for each in self.changes if each.gain >= LEAST_GAIN]
        better = [each for each in gained if not each.saturated] if self.goal.waits else gained
        yield "single changes, each simulated"
        for change in better[: self.top]:
            yield from unbroken(str(change), "  ", "    ")
            yield from unbroken(command_line(change.settings), "      ", "      ")
        rest = len(self.changes) - len(better[: self.top])
        if rest:
            more = f"{rest} more gain less or nothing" if better else f"none of {rest} gains"
            yield f"  {more}"
        if self.refused:
            what, reason = self.refused[0]
            yield ""
            yield from unbroken(f"{len(self.refused)} cannot be simulated, such as {what}:")
            yield from unbroken(reason, "  ", "  ")

    def facts(self) -> dict[str, Any]:
        """Return the advice as plain data, all changes of it."""
        return {
            "title": self.server.title,
            "goal": self.goal.name,
            "why": self.why,
            "value": self.value,
            "changes": [each.facts() for each in self.changes],
            "refused": [{"what": what, "why": why} for what, why in self.refused],
        }


def server_advice(
    server: Configuration,
    model: Architecture,
    traffic: Traffic,
    targets: Targets | None = None,
    *,
    top: int = SHOWN_CHANGES,
) -> ServerAdvice:
    """Simulate single changes of a server, and return them by their gains.

    They are to improve the target that is missed most; where none is given or missed, generated
    tokens per dollar of a server that is saturated or has a closed loop, and the median latency of
    another, whose throughput is that of its requests.

    targets: of the server; None for none.
    top: changes to print.

    Raise as `ts.serve` does.
    """
    base = server.result(model, traffic)
    goal, why = _goal(base, targets)
    before = _value(base, goal)
    changes, refused = [], []
    for what, keys in changes_of(server, model, traffic):
        try:
            changed = _changed(server, keys)
            result = changed.result(model, traffic)
        except TpusimError as error:
            refused.append((what, str(error)))
            continue
        after = _value(result, goal)
        gain = goal.gain(before, after)
        changes.append(ServerChange(changed, what, gain, after, result.saturated, goal))
    changes.sort(key=lambda each: (goal.waits and each.saturated, -each.gain))
    return ServerAdvice(
        server=base,
        goal=goal,
        why=why,
        value=before,
        changes=tuple(changes),
        refused=tuple(refused),
        top=top,
    )


def _goal(base: ServingResult, targets: Targets | None) -> tuple[ServerGoal, str]:
    """Return what to improve, and why."""
    values = dict(metric_values(base.metrics))
    missed = targets.missed(values) if targets is not None else {}
    if targets is not None and missed:
        worst = max(missed, key=targets.strains(values).__getitem__)
        return ServerGoal(worst, worst == OUTPUT), f"misses {missed[worst]}"
    if base.output_cost is not None and (base.saturated or base.traffic.users):
        return ServerGoal(PER_DOLLAR, True), SATURATED if base.saturated else "closed loop"
    if base.saturated or base.traffic.users:
        return ServerGoal(OUTPUT, True), "the chip has no price"
    return ServerGoal(LATENCY, False), "the server keeps up with its requests"


def _value(result: ServingResult, goal: ServerGoal) -> float:
    if goal.name == PER_DOLLAR:
        cost = result.output_cost
        return 0.0 if cost is None else 1e6 / cost.usd
    return dict(metric_values(result.metrics))[goal.name]


def _changed(server: Configuration, keys: Mapping[str, Any]) -> Configuration:
    others = {key: value for key, value in keys.items() if key != "slice"}
    there = server.on(keys["slice"]) if "slice" in keys else server
    return there.changed(others) if others else there


def changes_of(
    server: Configuration, model: Architecture, traffic: Traffic
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield single changes of a server, in words and as keys: of [serving], and `slice`."""
    plan, engine = server.plan, server.engine
    for key, what in (("kv_dtype", "cache"), ("weight_dtype", "weights")):
        for dtype in DTYPES:
            if dtype != getattr(plan, key):
                yield f"{what} in {dtype}", {key: dtype}
    for mesh in _meshes(plan.mesh):
        yield f"mesh {shown_key('mesh', mesh)}", {"mesh": mesh}
    if model.has_experts:
        way = "not " if plan.expert_parallel else ""
        yield f"experts {way}divided", {"expert_parallel": not plan.expert_parallel}
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        now = getattr(engine, key)
        for value in (now // 2, now * 2):
            if value:
                yield f"{key} {value:,}", {key: value}
    flags = ["chunked_prefill", *(["prefix_cache"] if traffic.requests.prefixes else [])]
    for key in flags:
        now = getattr(engine, key)
        yield f"{key} {shown_key(key, not now)}", {key: not now}
    for count in (server.replicas - 1, server.replicas + 1):
        if count:
            yield f"{count} replica{'s' * (count > 1)}", {"replicas": count}
    yield from _slices(server)


def _meshes(mesh: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield other divisions of the devices that share heads or have sequences of their own."""
    others = {axis: size for axis, size in mesh.items() if axis not in (ATTENTION_DATA, TENSOR)}
    devices = prod(mesh.values()) // prod(others.values())
    for groups in divisors(devices):
        if groups != mesh.get(ATTENTION_DATA, 1):
            sizes = {**others, ATTENTION_DATA: groups, TENSOR: devices // groups}
            yield {axis: size for axis, size in sizes.items() if size > 1} or {TENSOR: 1}


def _slices(server: Configuration) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield slices of other chips, and of more and fewer of the same, that divide heads further."""
    now = server.pod
    for chip in ACCELERATORS:
        counts = (now.chips,) if chip != now.chip.name else (now.chips // 2, now.chips * 2)
        for count in counts:
            pod = _slice_of(chip, count)
            tensor, rest = 0, 1
            if pod is not None:
                others = prod(n for axis, n in server.plan.mesh.items() if axis != TENSOR)
                tensor, rest = divmod(pod.devices, others)
            if pod is not None and tensor and not rest:
                mesh = {**server.plan.mesh, TENSOR: tensor}
                yield f"slice {pod}", {"slice": pod, "mesh": mesh}


def _slice_of(chip: str, chips: int) -> Slice | None:
    """Return the slice of a chip with so many chips; None if there is none."""
    try:
        return Slice(chip, format_shape(default_shape(chip, chips)))
    except HardwareError:
        return None
