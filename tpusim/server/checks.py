"""Checks of a server before it runs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import ServerError
from tpusim.server.policy import Policy
from tpusim.server.replica_pool import ROUTERS
from tpusim.traffic import Requests

COUNTS = ("max_num_seqs", "max_num_batched_tokens", "ranks", "page_size", "pages")
TIMES = (
    "max_model_len",
    "host_ps",
    "schedule_ps",
    "sequence_ps",
    "request_ps",
    "hold_ps",
    "drafted",
)


def check_server(requests: Requests, pools: Sequence[tuple[Policy, int, str]]) -> None:
    """Raise ServerError for a server that cannot serve such requests.

    pools: policy, replicas and router; of those that decode too, if they are others.
    """
    for policy, replicas, router in pools:
        if replicas < 1:
            raise ServerError(f"replicas must be at least 1, not {replicas}")
        if router not in ROUTERS:
            raise ServerError(f"router must be one of {', '.join(ROUTERS)}, not {router!r}")
        check_policy(policy)
        if router == "prefix" and not (policy.prefix_cache and requests.prefixes):
            raise ServerError(
                "router = 'prefix' needs prefix_cache = true, and traffic with hashes of its "
                "prompts; without them write router = 'least-loaded'"
            )
    taken = ~refused(requests, pools[0][0])
    for at, (policy, _, _) in enumerate(pools):
        _check_pages(requests, policy, taken, answers=at == len(pools) - 1)


def check_outages(outages: Sequence[tuple[int, int, int]], replicas: int) -> None:
    """Raise ServerError for an outage of a replica that there is not, or at no time."""
    for number, from_ps, to_ps in outages:
        if not 0 <= from_ps <= to_ps:
            raise ServerError(
                f"outages has an outage from {from_ps} to {to_ps} ps, which must be from 0 ps on, "
                "and its end after its start"
            )
        if not 0 <= number < replicas:
            raise ServerError(
                f"outages has an outage of replica {number}, and there are {replicas}: "
                f"their numbers are 0 to {replicas - 1}"
            )


def check_policy(policy: Policy) -> None:
    """Raise ServerError for a policy that contradicts itself."""
    for names, least in ((COUNTS, 1), (TIMES, 0)):
        for name in names:
            if getattr(policy, name) < least:
                raise ServerError(f"{name} must be at least {least}, not {getattr(policy, name)}")
    if not 1 <= policy.accepted <= policy.drafted + 1:
        raise ServerError(
            f"accepted is {policy.accepted:g} tokens of a step, which must be from 1 to "
            f"{policy.drafted + 1}, as {policy.drafted} are drafted"
        )
    if policy.mixed and policy.priority == "prefill":
        raise ServerError(
            "priority = 'prefill' needs steps of one kind: decoding sequences have a token each "
            "in a mixed step, and prompts the rest; write mixed = false, or priority = 'decode'"
        )
    if policy.mixed and policy.drafted >= policy.max_num_batched_tokens:
        raise ServerError(
            f"max_num_batched_tokens must be above the {policy.drafted} drafted tokens of a "
            f"sequence, not {policy.max_num_batched_tokens}"
        )
    if policy.reserve is not None and policy.reserve < 0:
        raise ServerError(f"reserve must be at least 0, not {policy.reserve:g}")


def refused(requests: Requests, policy: Policy) -> NDArray[np.bool_]:
    """Return which requests are longer than `max_model_len`."""
    if not policy.max_model_len:
        return np.zeros(len(requests), bool)
    return np.asarray(requests.prompt + requests.output > policy.max_model_len)


def _check_pages(
    requests: Requests, policy: Policy, taken: NDArray[np.bool_], *, answers: bool
) -> None:
    """Raise ServerError where a request that is not refused can never run.

    answers: whether its answer is generated here too.
    """
    if not taken.any():
        return
    tokens = requests.prompt + (requests.output - 1 + policy.drafted if answers else 0)
    at = int(np.argmax(np.where(taken, tokens, 0)))
    most, room = int(tokens[at]), policy.pages * policy.page_size
    said = f"request {at} ({requests.prompt[at]} tokens in, {requests.output[at]} out)"
    if most > room:
        raise ServerError(
            f"{said} needs a cache of {most} tokens, and a data-parallel rank has pages for "
            f"{room}: use more or larger devices, or refuse such requests with max_model_len"
        )
    if not policy.chunked_prefill and most > policy.max_num_batched_tokens:
        raise ServerError(
            f"{said} may need a step of {most} tokens without chunked prefill, and "
            f"max_num_batched_tokens is {policy.max_num_batched_tokens}: "
            f"write max_num_batched_tokens = {most}, or chunked_prefill = true"
        )
