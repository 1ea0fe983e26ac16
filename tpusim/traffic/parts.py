"""Traffic made shorter or longer, with the arrivals and lengths that it has."""

from dataclasses import replace

import numpy as np

from tpusim.traffic.arrivals import PS_PER_S
from tpusim.traffic.requests import Requests
from tpusim.traffic.traffic import Traffic


def first_requests(traffic: Traffic, count: int) -> Traffic:
    """Return the first so many requests of a traffic, or all if it has no more."""
    requests = traffic.requests
    first = Requests(
        arrival_ps=requests.arrival_ps[:count],
        prompt=requests.prompt[:count],
        output=requests.output[:count],
        prefixes=requests.prefixes[:count],
        block=requests.block,
    )
    return replace(traffic, requests=first)


def repeated(traffic: Traffic, least: int) -> Traffic:
    """Return a traffic repeated until it has at least so many requests.

    Each round follows the one before at the mean interval, and shares no prefix with it.
    """
    requests, count = traffic.requests, len(traffic.requests)
    rounds = -(-least // count)
    if rounds <= 1:
        return traffic
    last = int(requests.arrival_ps[-1])
    interval = PS_PER_S / traffic.rate if traffic.rate else last / max(count - 1, 1)
    period = last + round(interval) if last else 0
    starts = np.repeat(np.arange(rounds, dtype=np.int64) * period, count)
    apart = 1 + max((max(each, default=0) for each in requests.prefixes), default=0)
    longer = Requests(
        arrival_ps=np.tile(requests.arrival_ps, rounds) + starts,
        prompt=np.tile(requests.prompt, rounds),
        output=np.tile(requests.output, rounds),
        prefixes=tuple(
            tuple(key + number * apart for key in keys)
            for number in range(rounds)
            for keys in requests.prefixes
        ),
        block=requests.block,
    )
    return replace(traffic, requests=longer)
