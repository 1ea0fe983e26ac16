"""A plain scheduler that visits each sequence in each step: what the server must agree with."""

from dataclasses import dataclass

from tpusim.server import Policy, StepCosts, StepLoad
from tpusim.traffic import Traffic


@dataclass(eq=False)
class Visited:
    row: int
    known: int
    left: int
    computed: int = 0
    pages: int = 0
    chunk: int = 0
    decodes: bool = False
    first: int = -1
    last: int = -1
    lost: int = 0


def token_by_token(
    traffic: Traffic, policy: Policy, costs: StepCosts
) -> list[tuple[int, int, int]]:
    """Return first and last token and preemptions of each request, as vLLM's scheduler has it.

    One rank and one replica; steps are mixed, prompts are chunked, nothing is cached or drafted.
    """
    requests = traffic.requests
    columns = zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)
    everyone = [Visited(row, *lengths) for row, lengths in enumerate(columns)]
    arrivals = list(zip(requests.arrival_ps.tolist(), everyone, strict=True))
    waiting: list[Visited] = []
    running: list[Visited] = []
    free, now = policy.pages, 0
    while arrivals or waiting or running:
        while arrivals and arrivals[0][0] <= now:
            waiting.append(arrivals.pop(0)[1])
        if not waiting and not running:
            now = arrivals[0][0]
            continue
        budget, step, lost, at = policy.max_num_batched_tokens, [], False, 0
        while at < len(running) and budget:
            one = running[at]
            one.chunk = min(one.known - one.computed, budget)
            more = -(-(one.computed + one.chunk) // policy.page_size) - one.pages
            while more > free and one in running:
                last = running.pop()
                free += last.pages
                last.pages = last.computed = 0
                last.lost, last.decodes = last.lost + 1, False
                waiting.insert(0, last)
                lost = True
            if one not in running:
                break
            free, one.pages, budget = free - more, one.pages + more, budget - one.chunk
            step.append(one)
            at += 1
        while not lost and waiting and budget and len(running) < policy.max_num_seqs:
            one = waiting[0]
            one.chunk = min(one.known, budget)
            one.pages = -(-one.chunk // policy.page_size)
            if one.pages > free:
                one.pages = 0
                break
            free, budget = free - one.pages, budget - one.chunk
            running.append(waiting.pop(0))
            step.append(one)
        load = [0] * 5
        for one in step:
            if one.decodes:
                load[0] += 1
                load[1] += one.known
            else:
                load[2] += one.chunk
                load[3] += one.computed + one.chunk
                load[4] += sum(range(one.computed + 1, one.computed + one.chunk + 1))
        now += policy.host_ps + costs.step_ps(StepLoad(*load)) if step else 0
        for one in step:
            one.computed += one.chunk
            if one.computed == one.known:
                one.first, one.decodes = now if one.first < 0 else one.first, True
                one.known, one.left = one.known + 1, one.left - 1
                if not one.left:
                    one.last = now
                    free += one.pages
                    running.remove(one)
    return [(one.first, one.last, one.lost) for one in everyone]
