"""Predict how a training step runs on a TPU pod: step time, MFU, memory, and why.

    import tpusim as ts

    pod = ts.Slice("v4", "8x16x16")
    model = ts.models.load("bert-480b")
    mesh = {"fsdp": 256, "tensor": 8}
    rules = {"act_embed": "tensor"}
    plan = ts.Plan(mesh=mesh, rules=rules, seq_len=512, global_batch=4096)
    print(ts.simulate(model, plan, pod))

The public names are listed in `__init__.pyi` and load on first use, so that importing the package
stays cheap.
"""

from typing import Any

import lazy_loader

__version__ = "0.3.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    """Return a public name, or say which is meant where there is none."""
    if name in __all__ or name.startswith("_"):
        return _load(name)
    from tpusim.base.errors import nearest

    raise AttributeError(
        f"tpusim has no {name!r}; {nearest(name, __all__, 'docs/api.md lists all')}"
    )
