"""Sweeps on a cluster: the executor of a Dask scheduler (extra `cluster`)."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager

from tpusim.base.errors import TpusimError
from tpusim.sweeps.dataset import code_digest

CONNECT_S = 10.0
"""Seconds in which the scheduler has to answer."""

LOST_WORKERS = 3
"""Workers that may be lost under one chunk before it counts as the cause (Dask's default)."""


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Yield the executor of the Dask cluster whose scheduler is at `address`, for `ts.sweep`.

    A chunk whose worker is lost runs again on another one. Workers may come and go.

    address: such as `tcp://10.0.0.2:8786`.

    Raise TpusimError if the extra `cluster` is not installed, if no scheduler answers, if it has no
    workers, if one of them has another tpusim, and if the cluster is lost.
    """
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise TpusimError(
            "a sweep on a cluster needs Dask: write pip install 'tpusim[cluster]', here and on the "
            "workers"
        ) from error
    client = Client.__new__(Client)
    try:
        client.__init__(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        # left to the garbage collector, it may be closed while another client starts, and both
        # need the same lock
        client.close()
        raise TpusimError(
            f"no Dask scheduler answers at {address!r}; start one with dask scheduler, and write "
            "the address that it prints, such as tcp://10.0.0.2:8786"
        ) from error
    with client:
        try:
            digests = client.run(code_digest, on_error="return")
            _check_workers(address, digests)
            yield client.get_executor()
        except KilledWorker as error:
            raise TpusimError(
                f"{LOST_WORKERS + 1} workers of {address} ended under one chunk, perhaps for lack "
                "of memory; give them more, and run the same again"
            ) from error
        except CancelledError as error:
            raise TpusimError(
                f"the cluster at {address} is lost; start it and run the same again (with a folder "
                "for its table, it continues where it stopped)"
            ) from error


def _check_workers(address: str, digests: dict[str, object]) -> None:
    """Raise TpusimError unless there are workers, and all have the code of this process."""
    if not digests:
        raise TpusimError(
            f"the scheduler at {address} has no workers; start some with dask worker {address} "
            "--nthreads 1"
        )
    own = code_digest()
    other = [worker for worker, digest in digests.items() if digest != own]
    if other:
        raise TpusimError(
            f"{len(other)} of {len(digests)} workers of {address} have no tpusim or another "
            f"version, such as {other[0]}; install there what is installed here"
        )
