"""What became of each request, and what the server did over time."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.server.peak_use import PeakUse

Column: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """What a server did, one element of each column per run of steps with the same sequences.

    A long simulation has merged spans: of several runs, and the idle times between them.

    start_ps, end_ps: of the run, the host between its steps included.
    busy_ps: of this time, that in steps; less only where runs are merged.
    steps: of the run.
    replica: its number; those that prefill alone come before those that decode alone.
    decodes: sequences that decode in each step, the mean of merged runs.
    prefills: tokens of prompts in all steps.
    pages: pages that sequences hold in its last step, those of idle cached blocks not included.
    waiting: requests that wait at its end for their first step, or after a preemption.
    """

    start_ps: Column
    end_ps: Column
    busy_ps: Column
    steps: Column
    replica: Column
    decodes: Column
    prefills: Column
    pages: Column
    waiting: Column


class Begun(NamedTuple):
    """The requests that were sent up to a time of a simulation, one element of each column each.

    now_ps: the time.
    arrival_ps, first_ps, last_ps: as of `Served`; -1 for what has not happened yet.
    peak: the most that a rank has asked of its limits.
    """

    now_ps: int
    arrival_ps: Column
    first_ps: Column
    last_ps: Column
    peak: PeakUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests after a simulation, one element of each column per request, in order of arrival.

    A request that is longer than `Policy.max_model_len` is refused when it arrives: it has no
    output, and its other times are -1.

    arrival_ps: when it was sent.
    scheduled_ps: when its first step began.
    first_ps: when its first token was received.
    last_ps: when its last token was received.
    prompt: tokens.
    output: tokens that were generated.
    cached: tokens of the prompt that were found in the prefix cache when it was first scheduled.
    preemptions: how often it lost its pages, and was computed again.
    resumed_ps: when it was scheduled again after it had lost its replica; -1 if it lost none.
    spans: what the server did over time.
    gaps: histogram of the times between two answers of a request, each of one token, or with
        speculation of those of a step: picoseconds, within 0.4 %, and how often. Equal steps in a
        row count with their mean.
    present_ps: the integral of the requests in the server over time, if all were answered.
    peak: the most that a rank asks of the limits of its policy.
    """

    arrival_ps: Column
    scheduled_ps: Column
    first_ps: Column
    last_ps: Column
    prompt: Column
    output: Column
    cached: Column
    preemptions: Column
    resumed_ps: Column
    spans: Spans
    gaps: tuple[Column, Column]
    present_ps: int
    peak: PeakUse = field(default_factory=PeakUse)
