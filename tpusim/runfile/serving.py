"""The sections [serving] and [traffic] of a run file: a server and the requests that reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import PlanError, TrafficError, blame, nearest
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import check_from_zero
from tpusim.runfile.serving_fields import KINDS, LENGTH_ADVICE, SERVING_CHOICES, SERVING_FIELDS
from tpusim.server.server_options import ServerOptions

if TYPE_CHECKING:
    from tpusim.hardware import Slice
    from tpusim.models import Architecture
    from tpusim.plan import ServingPlan
    from tpusim.serving.engines import Engine
    from tpusim.serving.replica_loss import ServerFailures
    from tpusim.traffic import Length, Traffic

SERVING, TRAFFIC, FAILURES = "serving", "traffic", "failures"

DEFAULT_ENGINE, DEFAULT_KIND = "vllm-tpu", "poisson"

_TWO_NUMBERS = ("uniform", "vllm", "inferencex")
_LOG_NORMAL = ("median", "mean", "p90", "p99", "most")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKeys:
    """The requests of a run file.

    kind: `poisson`, `burst` (all at once), `closed_loop` or `trace`.
    rate: mean requests that arrive in a second.
    burstiness: shape of the intervals, a gamma distribution: 1 (if it is left out) is Poisson, less
        comes in bursts, and `inf` at equal intervals.
    users: of a closed loop, each of whom waits for an answer before the next request.
    requests: how many; of a trace, the first so many (all if it is left out).
    prompt: tokens of each prompt, or their distribution.
    output: tokens that each request generates, or their distribution.
    pairs: path of a trace that has the lengths of both, in place of `prompt` and `output`.
    seed: of all that is drawn.
    path: of a trace, relative to the run file.
    window: start and end of the part of a trace that is read, in seconds.
    rate_scale: factor of the rate of a trace.
    """

    kind: str = DEFAULT_KIND
    rate: float | None = None
    burstiness: float | None = None
    users: int | None = None
    requests: int | None = None
    prompt: int | Mapping[str, Any] | None = None
    output: int | Mapping[str, Any] | None = None
    pairs: str = ""
    seed: int = 0
    path: str = ""
    window: tuple[float, ...] | None = None
    rate_scale: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TrafficError(f"traffic.kind is {self.kind!r}; {nearest(self.kind, KINDS)}")
        needed, others = KINDS[self.kind]
        for key, value in self.given().items():
            if key not in (*needed, *others):
                has = [repr(kind) for kind, each in KINDS.items() if key in (*each[0], *each[1])]
                raise TrafficError(
                    f"traffic.{key} is {shown(value)}, which traffic of the kind {self.kind} does "
                    f"not have; leave it out, or write kind = {' or '.join(has)}"
                )
        for key in needed:
            if key not in self.given():
                raise TrafficError(
                    f"traffic.{key} is missing; traffic of the kind {self.kind} needs it"
                )
        if self.kind != "trace":
            self._check_drawn()
        if self.window is not None and len(self.window) != 2:
            raise TrafficError(
                f"traffic.window is {shown(list(self.window))}; write its start and its end in "
                "seconds, such as [0, 600]"
            )

    def _check_drawn(self) -> None:
        if self.requests is None:
            raise TrafficError("traffic.requests is missing; write how many, such as 1000")
        if not self.pairs:
            for key in ("prompt", "output"):
                if getattr(self, key) is None:
                    raise TrafficError(f"traffic.{key} is missing; write {LENGTH_ADVICE}")

    def given(self) -> dict[str, Any]:
        """Return the keys that are not their defaults, but for `kind`."""
        pairs = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return {key: value for key, value, default in pairs if key != "kind" and value != default}

    def keys(self) -> dict[str, Any]:
        """Return the keys of a section [traffic] that are not their defaults."""
        kind = {} if self.kind == DEFAULT_KIND else {"kind": self.kind}
        return kind | self.given()

    def traffic(self, folder: Path) -> "Traffic":
        """Return the requests.

        folder: that paths are relative to.

        Raise TrafficError for values that no traffic can have.
        """
        from tpusim.traffic import Traffic

        given = self.given()
        if self.kind == "trace":
            given["path"] = folder / self.path
            return Traffic.read(given.pop("path"), **given)
        for key in ("prompt", "output"):
            if key in given:
                with blame(f"traffic.{key}"):
                    given[key] = _length(given[key])
        if self.pairs:
            given["pairs"] = Traffic.read(folder / self.pairs)
        made: Traffic = getattr(Traffic, self.kind)(**given)
        return made


def _length(given: int | Mapping[str, Any]) -> "Length":
    """Return a length, or the distribution that a table says. Raise TrafficError for another."""
    from tpusim.traffic import Lengths

    if isinstance(given, int):
        return given
    names = list(given)
    if "median" in given and set(names) <= set(_LOG_NORMAL):
        return Lengths.log_normal(**given)
    if len(names) == 1 and names[0] in _TWO_NUMBERS:
        values = given[names[0]]
        if isinstance(values, list) and len(values) == 2:
            found: Length = getattr(Lengths, names[0])(*values)
            return found
    raise TrafficError(
        f"the length is a table of {', '.join(names) or 'nothing'}; write {LENGTH_ADVICE}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """What a run file with a section [serving] says.

    where: the words that name its file in messages.
    model, plan, pod: what is served, how it is sharded, and on which slice; that of each replica.
    engine: the engine with its settings.
    options: what else there is of it, such as replicas.
    traffic, failures: the sections [traffic] and [failures]; None without one.
    folder: that the paths of the traffic are relative to.
    notes: features of the model's `config.json` that are not modelled.
    """

    where: str
    model: "Architecture"
    plan: "ServingPlan"
    pod: "Slice"
    engine: "Engine"
    options: ServerOptions = field(default_factory=ServerOptions)
    traffic: TrafficKeys | None = None
    failures: "ServerFailures | None" = None
    folder: Path = Path()
    notes: tuple[str, ...] = ()

    def requests(self) -> "Traffic":
        """Return the requests of the section [traffic]. Raise PlanError without one."""
        if self.traffic is None:
            raise PlanError(
                "the section [traffic] is missing; write one with rate, requests, prompt and output"
            )
        return self.traffic.traffic(self.folder)


def server_of(given: Mapping[str, Any], chip: str) -> "tuple[ServingPlan, Engine, ServerOptions]":
    """Return plan, engine and options of a section [serving] whose types are right.

    Pages, memory and matmuls of experts that the section does not have are those of the engine.

    chip: its generation, on which defaults of engines depend.

    Raise PlanError for values that they cannot have.
    """
    from tpusim.plan import ServingPlan
    from tpusim.serving.engines import Engine

    keys = dict(given)
    names = [each.name for each in fields(ServerOptions)]
    options = ServerOptions(**{key: keys.pop(key) for key in names if key in keys})
    _check_priority(keys.get("priority"))
    for key in ("host_s", "schedule_s", "sequence_s", "request_s", "hold_s"):
        check_from_zero(f"serving.{key}", keys.get(key, 0.0))
    name, version = keys.pop("engine", DEFAULT_ENGINE), keys.pop("version", "")
    of_plan = {each.name for each in fields(ServingPlan)}
    settings = {key: value for key, value in keys.items() if key not in of_plan}
    engine = Engine.of(name, version, chip, **settings)
    planned = {key: value for key, value in keys.items() if key in of_plan}
    experts = ServingPlan(**planned).expert_devices
    return ServingPlan(**{**engine.followed(experts), **planned}), engine, options


def server_keys(
    plan: "ServingPlan", engine: "Engine", options: ServerOptions, chip: str
) -> dict[str, Any]:
    """Return the keys of a section [serving] that are not their defaults; see `server_of`."""
    from tpusim.plan import ServingPlan
    from tpusim.serving.engines import Engine

    usual = Engine.of(engine.name, engine.version, chip)
    standard = Engine.of(engine.name, chip=chip)
    followed = engine.followed(plan.expert_devices)
    plain = ServingPlan()
    planned = {each.name: getattr(plan, each.name) for each in fields(plan)}
    keys = {
        key: value
        for key, value in planned.items()
        if value != followed.get(key, getattr(plain, key)) or key == "mesh"
    }
    if engine.name != DEFAULT_ENGINE:
        keys["engine"] = engine.name
    if engine.version != standard.version:
        keys["version"] = engine.version
    names = [key for key in SERVING_FIELDS["serving"] if key not in planned]
    for key in (name for name in names if hasattr(engine, name) and name != "version"):
        if getattr(engine, key) != getattr(usual, key):
            keys[key] = getattr(engine, key)
    others = ((each.name, getattr(options, each.name), each.default) for each in fields(options))
    return keys | {key: value for key, value, default in others if value != default}


def _check_priority(priority: str | None) -> None:
    words = SERVING_CHOICES["serving", "priority"]
    if priority not in (None, *words):
        raise PlanError(f"serving.priority is {priority!r}; {nearest(str(priority), words)}")


def traffic_of(given: Mapping[str, Any]) -> TrafficKeys:
    """Return the traffic of a section [traffic] whose types are right. Raise TrafficError."""
    keys = dict(given)
    if "window" in keys:
        keys["window"] = tuple(keys["window"])
    return TrafficKeys(**keys)


def failures_of(given: Mapping[str, Any], options: ServerOptions) -> "ServerFailures":
    """Return the failures of a section [failures] whose types are right. Raise PlanError."""
    from tpusim.serving.replica_loss import ServerFailures

    found = ServerFailures(**given)
    found.check_spares(options.replicas)
    return found
