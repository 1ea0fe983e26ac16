"""Requests as columns."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import TrafficError

Column: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Requests in the order of their arrival, one element of each column per request.

    arrival_ps: picoseconds after the first moment of the traffic, in ascending order; those of a
        closed loop are all 0.
    prompt: tokens of the prompt, at least 1.
    output: tokens that are generated, at least 1.
    prefixes: hashes of the blocks of each prompt, from its first token, if they are known. Prompts
        that begin with the same hashes share these blocks.
    block: tokens of such a block; 0 where no hashes are known.

    Raise TrafficError for columns that are not int64, differ in length, or break these rules.
    """

    arrival_ps: Column
    prompt: Column
    output: Column
    prefixes: tuple[tuple[int, ...], ...] = ()
    block: int = 0

    def __post_init__(self) -> None:
        count = len(self.prompt)
        for name, least in (("arrival_ps", 0), ("prompt", 1), ("output", 1)):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
                raise TrafficError(f"{name} is not a column of int64; write a numpy array of it")
            if len(column) != count:
                raise TrafficError(
                    f"{name} has {len(column):,} elements and prompt {count:,}; "
                    "write one per request"
                )
            if count and column.min() < least:
                raise TrafficError(f"{name} has {column.min():,}; write at least {least}")
        if np.any(np.diff(self.arrival_ps) < 0):
            raise TrafficError("arrival_ps is not in ascending order; sort the requests by it")
        if len(self.prefixes) not in (0, count) or bool(self.prefixes) != (self.block > 0):
            raise TrafficError(
                f"{len(self.prefixes):,} prefixes of blocks of {self.block} tokens for {count:,} "
                "requests; write one per request and the tokens of a block, or neither"
            )

    def __len__(self) -> int:
        return len(self.prompt)
