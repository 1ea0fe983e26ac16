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

import lazy_loader

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
