"""Requests as columns, and the traffic that they make."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests in the order of their arrival, one element of each column per request.

    arrival_ps: picoseconds after the first moment of the traffic, in ascending order; those of a
        closed loop are all 0.
    prompt: tokens of the prompt, at least 1.
    output: tokens that are generated, at least 1.
    prefixes: hashes of the blocks of each prompt, from its first token, if they are known. Prompts
        that begin with the same hashes share these blocks.
    block: tokens of such a block; 0 where no hashes are known.
    """

    arrival_ps: Column
    prompt: Column
    output: Column
    prefixes: tuple[tuple[int, ...], ...] = ()
    block: int = 0

    def __len__(self) -> int:
        return len(self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests that reach a server, and what starts each.

    users: users of a closed loop, each of whom sends the next request when the last one is
        answered; 0 for an open loop, whose requests arrive at `arrival_ps`.
    said: the traffic in words, such as `Poisson, 4 requests/s, 1024 tokens in, 128 out`.
    """

    requests: Requests
    users: int = 0
    said: str = ""
