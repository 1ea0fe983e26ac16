"""The front door of serving: steps are simulated, and then the server whose steps they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.units import format_seconds
from tpusim.engine.clock import picoseconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import ServingPlan
from tpusim.results import PlanResult
from tpusim.server import DecodePool, Outage, Policy, Served
from tpusim.server import serve as serve_requests
from tpusim.server.replica_pool import Router
from tpusim.server.step_load import StepLoad
from tpusim.serving.capacity import CacheRoom, needed_pages
from tpusim.serving.decode_server import CacheTransfer, DecodeServer
from tpusim.serving.engines import Engine
from tpusim.serving.metrics import answered
from tpusim.serving.replica_loss import ServerFailures, lose_replica
from tpusim.serving.result import ServingResult
from tpusim.serving.step_table import SharedSteps, StepTable
from tpusim.simulation.arguments import check_model, check_slice
from tpusim.traffic import Traffic

DEFAULT_ENGINE = "vllm-tpu"

ORDER = "write serve(model, plan, slice, traffic)"


@dataclass(frozen=True, slots=True)
class Server:
    """One replica before its traffic: its steps, the room for its cache, and its policy."""

    steps: StepTable
    room: CacheRoom
    policy: Policy

    @classmethod
    def of(
        cls,
        model: Architecture,
        plan: ServingPlan,
        pod: Slice,
        engine: Engine,
        *,
        longest: int = 1,
        drafted: int = 0,
        accepted: float = 1.0,
        known: SharedSteps | None = None,
    ) -> "Server":
        """Return a replica.

        longest: tokens of the longest request, which the cache must hold.
        drafted, accepted: see `Policy`.
        known: steps of the same model, plan (but for `kv_dtype`), slice and `drafted` that were
            simulated before.

        Raise PlanError for a plan that the model does not admit, and for a cache that cannot hold
        the longest request.
        """
        ranks = plan.ranks
        buckets = engine.buckets(ranks, plan.least_tokens)
        most = max((engine.max_num_batched_tokens, *buckets.tokens))
        rows = max((engine.rank_seqs(ranks), *buckets.rows, *buckets.decodes))
        known = known or SharedSteps()
        room = known.memory(model, plan, pod, most, rows).room(plan, rows, longest)
        engine = engine.changed(max_num_seqs=_sequences(engine, room, ranks))
        policy = engine.policy(
            pages=needed_pages(room, longest, model.name),
            page_size=plan.page_size,
            ranks=ranks,
            drafted=drafted,
            accepted=accepted,
        )
        steps = StepTable(model, plan, pod, buckets, drafted + 1, engine.routes_padding, known)
        return cls(steps, room, policy)


def _sequences(engine: Engine, room: CacheRoom, ranks: int) -> int:
    """Return `max_num_seqs` of an engine, of which each rank has no more than there is room for."""
    most = room.sequences if engine.seqs_per_rank else room.sequences * ranks
    return min(engine.max_num_seqs, most)


@checked_call
def serve(
    model: Architecture | str,
    plan: ServingPlan,
    pod: Slice | str,
    traffic: Traffic,
    engine: Engine | None = None,
    *,
    replicas: int = 1,
    router: Router = "round-robin",
    drafted: int = 0,
    accepted: float = 1.0,
    ready_s: float = 0.0,
    decode: DecodeServer | None = None,
    failures: ServerFailures | None = None,
    fold: bool = True,
) -> ServingResult:
    """Simulate a server: its requests in time, with the simulated steps of the model.

    Each step has the arrays of the engine's bucket. A step's time on the devices is simulated once
    for each bucket, to which attention adds its time on the load of the step.

    model, pod: as of `simulate`; the slice is that of one replica.
    plan: how the model is divided over the slice, and its dtypes.
    traffic: requests, such as those of `Traffic.poisson` or `Traffic.read`.
    engine: the engine with its settings; None for vLLM with its defaults.
    replicas: servers with a slice each, among which `router` distributes requests.
    drafted: tokens that speculation drafts for each sequence and step; 0 for none.
    accepted: mean tokens of a sequence and step with speculation, at most `drafted + 1`.
    ready_s: seconds until the replicas begin to serve (cold start).
    decode: replicas that decode alone; those of the other arguments then prefill alone.
    failures: the loss of one of the replicas, which do not decode alone.
    fold: see `tpusim.server.serve`.

    Raise PlanError for a plan that the model does not admit and for a cache that cannot hold the
    longest request, ServerError for settings that contradict each other.
    """
    model, pod = check_model(model, ORDER, "serve"), check_slice(pod, ORDER)
    engine = engine or Engine.of(DEFAULT_ENGINE, chip=pod.chip.generation)
    longest = longest_request(traffic, engine)
    server = Server.of(
        model, plan, pod, engine, longest=longest, drafted=drafted, accepted=accepted
    )
    given = {"longest": longest, "drafted": drafted, "accepted": accepted}
    other = None if decode is None else _decoding(model, server, engine, decode, given)

    def run(count: int, outages: Sequence[Outage]) -> Served:
        return serve_requests(
            traffic,
            server.policy,
            server.steps,
            replicas=count,
            router=router,
            ready_ps=picoseconds(ready_s),
            decode=None if other is None else other.pool,
            outages=outages,
            fold=fold,
        )

    if failures is None:
        served, loss = run(replicas, ()), None
    else:
        served, loss = lose_replica(failures, run, pod, replicas=replicas, ready_s=ready_s)
    prefill, decoded = typical_steps(server.steps, served)
    notes = [str(server.room)]
    if other is not None:
        _, decoded = typical_steps(other.server.steps, served)
        notes.append(other.said)
    return ServingResult.of(
        served,
        traffic,
        server.policy,
        replicas=replicas + (0 if failures is None else failures.spares),
        loss=loss,
        model=model,
        plan=plan,
        pod=pod,
        prefill=prefill,
        decode=decoded,
        notes=tuple(notes),
        decoding=None if other is None else other.server.steps.pod,
        decoding_replicas=0 if decode is None else decode.replicas,
    )


def longest_request(traffic: Traffic, engine: Engine) -> int:
    """Return the tokens of the longest request that an engine admits."""
    requests = traffic.requests
    longest = int((requests.prompt + requests.output).max())
    return min(longest, engine.max_model_len) if engine.max_model_len else longest


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Replicas that decode alone, as the simulation takes them and in words."""

    server: Server
    pool: DecodePool
    said: str


def _decoding(
    model: Architecture,
    first: Server,
    engine: Engine,
    decode: DecodeServer,
    given: Mapping[str, Any],
) -> _Decoding:
    """Return the replicas that decode what others have prefilled.

    first, engine: those that prefill.
    given: arguments of `Server.of` besides.
    """
    steps = first.steps
    plan, pod = decode.plan or steps.plan, decode.pod or steps.pod
    server = Server.of(model, plan, pod, decode.engine or engine, **given)
    transfer = CacheTransfer.of(first.room, steps.plan, (steps.pod, pod), decode)
    pool = DecodePool(
        policy=server.policy,
        costs=server.steps,
        transfer_ps=transfer.ps,
        replicas=decode.replicas,
        router=decode.router,
    )
    said = (
        f"{decode.replicas} x {pod} decode alone ({plan}), {server.room}; a cache of 1,000 tokens "
        f"comes in {format_seconds(transfer.ps(1000) * 1e-12)}"
    )
    return _Decoding(server, pool, said)


def typical_steps(steps: StepTable, served: Served) -> tuple[PlanResult | None, PlanResult | None]:
    """Return a step with prompts and one that only decodes, of mean loads; None where none is.

    The mean counts each step once. A sequence that decodes sees its prompt and half of its answer;
    a prompt is at its middle.
    """
    spans, served = served.spans, answered(served)
    with_prompts, alone = spans.prefills > 0, (spans.prefills == 0) & (spans.decodes > 0)
    prefill = decode = None
    if not len(served.prompt):
        return prefill, decode
    context = float((served.prompt + served.output / 2).mean())
    if with_prompts.any():
        weights = spans.steps[with_prompts]
        tokens = ceil(spans.prefills[with_prompts].sum() / weights.sum())
        decodes = int((spans.decodes[with_prompts] * weights).sum() / weights.sum())
        prefill = steps.step(prompt_load(tokens, float(served.prompt.mean()), decodes, context))
    if alone.any():
        weights = spans.steps[alone]
        decodes = max(1, round((spans.decodes[alone] * weights).sum() / weights.sum()))
        drafted = steps.drafted
        decode = steps.step(StepLoad(decodes * drafted, round(decodes * context)))
    return prefill, decode


def prompt_load(tokens: int, prompt: float, decodes: int = 0, context: float = 0.0) -> StepLoad:
    """Return the load of a step with `tokens` of prompts of a mean length.

    A prompt that is longer than the tokens is in the middle of its chunks; shorter ones are whole.
    """
    before = max(0.0, (prompt - tokens) / 2)
    each = min(prompt, tokens)
    count = tokens / each
    keys = count * (before + each)
    pairs = count * (each * before + each * (each + 1) / 2)
    return StepLoad(decodes, round(decodes * context), tokens, round(keys), round(pairs))
