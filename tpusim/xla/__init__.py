"""JAX programs and HLO: what the TPU compiler made, as a program that the engine replays.

    compiled = ts.xla.compile(train_step, state, batch, slice="v5e:16x16", mesh={"fsdp": 256})
    compiled = ts.xla.load("step.hlo.gz")

Behind the extra `xla`: jaxlib reads HLO, and jax with libtpu compiles without a TPU. Neither is
imported before it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpusim.xla.compiled import Compiled, MemoryReport, load
    from tpusim.xla.compiling import compile
    from tpusim.xla.topology import make_mesh

_HOMES = {
    "Compiled": "compiled",
    "MemoryReport": "compiled",
    "compile": "compiling",
    "load": "compiled",
    "make_mesh": "topology",
}

__all__ = ["Compiled", "MemoryReport", "compile", "load", "make_mesh"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tpusim.xla' has no attribute {name!r}")
    value = getattr(import_module(f"tpusim.xla.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
