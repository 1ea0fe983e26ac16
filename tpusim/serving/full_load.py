"""What a server does when it is full, in closed form: its batch, and the requests it answers."""

from tpusim.server.step_load import StepLoad
from tpusim.serving.metrics import PICO
from tpusim.serving.serve import Server, prompt_load
from tpusim.traffic import Traffic
from tpusim.traffic.requests import Column


def slots(server: Server, traffic: Traffic) -> int:
    """Return the sequences that a replica runs at a time when it is full.

    Each rank has as many as the engine lets it, or as the pages of its cache hold at half of their
    answers.
    """
    policy = server.policy
    tokens = _mean(traffic.requests.prompt) + _mean(traffic.requests.output) / 2
    pages = max(-(-tokens // policy.page_size), 1.0)
    return max(1, min(policy.max_num_seqs, int(policy.pages // pages))) * policy.ranks


def closed_form_rate(server: Server, traffic: Traffic, batch: int) -> float:
    """Return about how many requests a replica answers in a second while `batch` decode.

    A request has a share of as many decode steps as it generates tokens, and its prompt takes what
    a step of as many prompt tokens as it admits takes longer than one that only decodes.
    """
    policy, steps = server.policy, server.steps
    prompt, output = _mean(traffic.requests.prompt), _mean(traffic.requests.output)
    context = prompt + output / 2
    host, least = policy.host(batch)
    drafted = policy.drafted + 1
    decode = max(steps.step_ps(StepLoad(batch * drafted, round(batch * context))) + host, least)
    room = policy.max_num_batched_tokens * policy.ranks
    beside = batch if policy.mixed and batch * drafted < room else 0
    tokens = max(1, room - beside * drafted)
    load = prompt_load(tokens, prompt, beside * drafted, context)
    mixed = max(steps.step_ps(load) + (host if beside else policy.host_ps), policy.schedule_ps)
    each = max(mixed - (decode if beside else 0), 0) / tokens
    seconds = (decode * (output - 1) / policy.accepted / batch + each * prompt) * PICO
    return 1 / max(seconds, PICO)


def _mean(column: Column) -> float:
    return float(column.mean())
