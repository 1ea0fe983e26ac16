"""What became of each request, and what the server did over time."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """What a server did, one element of each column per run of steps with the same sequences.

    start_ps, end_ps: of the run, the host between its steps included.
    steps: of the run.
    replica: its number.
    decodes: sequences that decode in each step.
    prefills: tokens of prompts in each step.
    pages: pages that are taken at its end.
    waiting: requests that wait for their first step.
    """

    start_ps: Column
    end_ps: Column
    steps: Column
    replica: Column
    decodes: Column
    prefills: Column
    pages: Column
    waiting: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests after a simulation, one element of each column per request, in order of arrival.

    arrival_ps: when it was sent.
    scheduled_ps: when its first step began.
    first_ps: when its first token was received.
    last_ps: when its last token was received.
    prompt, output: tokens.
    cached: tokens of the prompt that were found in the prefix cache.
    preemptions: how often it lost its pages, and was computed again.
    spans: what the server did over time.
    gaps: histogram of the times between two tokens of a request: picoseconds, and how often.
    """

    arrival_ps: Column
    scheduled_ps: Column
    first_ps: Column
    last_ps: Column
    prompt: Column
    output: Column
    cached: Column
    preemptions: Column
    spans: Spans
    gaps: tuple[Column, Column]
