"""A step of each kind of a server that is full, without traffic: prompts, and decoding."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.base.checked_call import checked_call
from tpusim.base.short_repr import ShortRepr
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import ServingPlan
from tpusim.results import ServedStep, entry
from tpusim.server import Policy
from tpusim.server.step_load import StepLoad
from tpusim.serving.capacity import CacheRoom
from tpusim.serving.engines import Engine
from tpusim.serving.serve import Server, prompt_load

PROMPT, OUTPUT = 1024, 256
"""Tokens of a request, where no traffic says."""


@dataclass(frozen=True, slots=True, repr=False)
class FullSteps(ShortRepr):
    """Two steps of a server, and the room for its cache. Prints as their reports.

    room: of one device of a rank.
    prefill: as many prompt tokens as the engine takes in a step, or one prompt if that is less.
    decode: as many sequences as the engine runs, or as the cache holds if that is less.
    """

    room: CacheRoom
    prefill: ServedStep
    decode: ServedStep

    def __str__(self) -> str:
        return "\n\n".join(("\n".join(self._cache()), str(self.prefill), str(self.decode)))

    def _cache(self) -> Iterator[str]:
        yield from entry("cache", str(self.room))


@checked_call
def full_steps(
    model: Architecture,
    plan: ServingPlan,
    pod: Slice,
    engine: Engine,
    *,
    prompt: float = PROMPT,
    output: float = OUTPUT,
) -> FullSteps:
    """Simulate a step of prompts and one that decodes, of a server that is full.

    prompt, output: mean tokens of a request. A sequence that decodes has half of its answer.

    Raise PlanError for a plan that the model does not admit, and for a cache that cannot hold one
    request.
    """
    server = Server.of(model, plan, pod, engine, longest=round(prompt + output))
    steps = [server.steps.step(load) for load in full_loads(server.policy, prompt, output)]
    return FullSteps(server.room, *steps)


def full_loads(policy: Policy, prompt: float, output: float) -> tuple[StepLoad, StepLoad]:
    """Return the loads of `full_steps`: prompts, and decoding."""
    context = prompt + output / 2
    tokens = max(1, min(round(prompt), policy.max_num_batched_tokens)) * policy.ranks
    pages = -(-round(prompt + output) // policy.page_size)
    most = max(1, min(policy.max_num_seqs, policy.pages // pages)) * policy.ranks
    return prompt_load(tokens, prompt), StepLoad(most, round(most * context))
