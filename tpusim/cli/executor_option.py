"""Where commands with many simulations run them: `--workers` or `--cluster`."""

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext

from tpusim.base.errors import TpusimError
from tpusim.sweeps import cluster


def executor_of(
    address: str | None, workers: int | None
) -> AbstractContextManager[Executor | None]:
    """Return a context with the executor of a Dask scheduler; with None for this machine.

    address: of the scheduler. workers: processes of this machine.

    Raise TpusimError if both are given.
    """
    if address is not None and workers is not None:
        raise TpusimError("--workers is for this machine and --cluster for others; give one")
    return nullcontext() if address is None else cluster(address)
