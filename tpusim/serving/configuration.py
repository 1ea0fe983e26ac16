"""A server with all that a user decides about it: slice, plan, engine and replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.base.units import format_mesh
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import ServingPlan
from tpusim.results.settings import settings_of
from tpusim.server import Served, Watch
from tpusim.server import serve as serve_requests
from tpusim.server.server_options import ServerOptions
from tpusim.serving.engines import Engine
from tpusim.serving.engines.command import ServingCommand
from tpusim.serving.engines.launch import serving_command
from tpusim.serving.engines.manifest import kubernetes_manifest
from tpusim.serving.result import ServingResult
from tpusim.serving.serve import Server, longest_request, serve
from tpusim.serving.step_table import SharedSteps
from tpusim.traffic import Traffic

SECONDS_AN_HOUR = 3600

OPTIONS = tuple(each.name for each in fields(ServerOptions))
"""What `ts.serve` takes of a server besides plan and engine."""

NOT_OF_STEPS = ("kv_dtype", "memory_fraction")
"""Keys of a plan that change no step but for its attention kernels."""

OF_STEPS = tuple(each.name for each in fields(ServingPlan) if each.name not in NOT_OF_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(ServerOptions):
    """A server as `ts.serve` takes it, without its model and its traffic.

    It has the fields of `ServerOptions` besides.

    pod: the slice of each replica.
    plan: how the model is divided over the slice, and its dtypes.
    engine: the engine with its settings.
    keys: of a section [serving] or [slice], changed by `changed` and `on`.
    """

    pod: Slice
    plan: ServingPlan
    engine: Engine
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return self.pod.chips * self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """Dollars for an hour of all replicas; None where the chip has no price."""
        rate = self.pod.usd_per_second()
        return None if rate is None else rate * SECONDS_AN_HOUR * self.replicas

    @property
    def settings(self) -> tuple[str, ...]:
        """The changed keys as `--set` takes them; another slice first."""
        given = dict(self.keys)
        pod = given.pop("slice", None)
        named = () if pod is None else settings_of({"name": pod.name}, "slice")
        return (*named, *settings_of(given, "serving"))

    def __str__(self) -> str:
        each = f"{self.replicas} x " if self.replicas > 1 else ""
        words = ", ".join(f"{key} {shown(key, value)}" for key, value in self._named())
        return f"{each}{self.pod}" + (f" with {words}" if words else "")

    def _named(self) -> list[tuple[str, Any]]:
        return [(k, v) for k, v in self.keys.items() if k not in ("slice", "replicas")]

    def on(self, pod: Slice) -> "Configuration":
        """Return the server on another slice, whose engine has the defaults of its chip."""
        mine = {each.name for each in fields(Engine)} - {"name", "version", "facts"}
        given = {key: getattr(self.engine, key) for key in mine - set(self.engine.facts)}
        engine = Engine.of(self.engine.name, self.engine.version, pod.chip.generation, **given)
        keys = self.keys if pod == self.pod else {**self.keys, "slice": pod}
        return self._with(engine, {}, pod=pod, keys=keys)

    def changed(self, keys: Mapping[str, Any]) -> "Configuration":
        """Return the server with some keys of a section [serving] changed.

        Pages and memory that were the engine's follow the changed engine.

        Raise PlanError for a key that no server has, and for values that it cannot have.
        """
        of_plan = {each.name for each in fields(ServingPlan)}
        options = {key: value for key, value in keys.items() if key in OPTIONS}
        planned = {key: value for key, value in keys.items() if key in of_plan}
        others = {k: v for k, v in keys.items() if k not in options and k not in planned}
        engine = self.engine.changed(**others)
        return self._with(engine, planned, keys={**self.keys, **keys}, **options)

    def _with(self, engine: Engine, planned: Mapping[str, Any], **others: Any) -> "Configuration":
        """Return the server with another engine, whose pages and memory the plan follows.

        planned: keys of the plan that are given.
        """
        old = self.engine.followed(self.plan.expert_devices)
        kept = {key: value for key, value in old.items() if getattr(self.plan, key) == value}
        plain = replace(self.plan, moe_backend="epmoe") if "moe_backend" in kept else self.plan
        plan = replace(plain, **planned)
        new = engine.followed(plan.expert_devices)
        moved = {key: new[key] for key in kept if key not in planned}
        return replace(self, engine=engine, plan=replace(plan, **moved), **others)

    def server(
        self, model: Architecture, traffic: Traffic, known: SharedSteps | None = None
    ) -> Server:
        """Return one replica. Raise PlanError as `Server.of` does.

        known: steps that were simulated before; see `step_key`.
        """
        return Server.of(
            model,
            self.plan,
            self.pod,
            self.engine,
            longest=longest_request(traffic, self.engine),
            drafted=self.drafted,
            accepted=self.accepted,
            known=known,
        )

    @property
    def step_key(self) -> tuple[Any, ...]:
        """What the steps depend on besides the model: servers with equal keys share `known`."""
        plan = [repr(getattr(self.plan, name)) for name in OF_STEPS]
        return *plan, self.pod, self.drafted, self.engine.routes_padding

    def served(self, server: Server, traffic: Traffic, watch: Watch | None = None) -> Served:
        """Simulate the traffic on replicas of a `server` of this configuration.

        watch: see `tpusim.server.serve`.
        """
        return serve_requests(
            traffic,
            server.policy,
            server.steps,
            replicas=self.replicas,
            router=self.router,
            ready_ps=picoseconds(self.ready_s),
            watch=watch,
        )

    def result(self, model: Architecture, traffic: Traffic) -> ServingResult:
        """Simulate the traffic, and return all of its result. Raise as `ts.serve` does."""
        options = {key: getattr(self, key) for key in OPTIONS}
        return serve(model, self.plan, self.pod, traffic, self.engine, **options)

    def command(self, model: str) -> ServingCommand:
        """Return the command of a replica; see `serving_command`.

        model: its name on Hugging Face, or its folder.
        """
        return serving_command(model, self.plan, self.engine, drafted=self.drafted)

    def manifest(self, model: str, name: str = "server") -> str:
        """Return the Kubernetes manifest of all replicas; see `kubernetes_manifest`."""
        return kubernetes_manifest(self.command(model), self.pod, name=name, replicas=self.replicas)


def shown(key: str, value: Any) -> str:
    """Return the value of a key of a server, in words."""
    if key == "mesh":
        return format_mesh(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def checked_price(configuration: Configuration) -> float:
    """Return dollars per hour. Raise PlanError where the chip has no price."""
    usd = configuration.usd_per_hour
    if usd is None:
        raise PlanError(
            f"{configuration.pod.chip.name} has no published price; leave its slices out, or write "
            'objective = "chips"'
        )
    return usd
