"""Predict how a training step runs on a TPU pod: step time, MFU, memory, and why.

    import tpusim as ts

    pod = ts.Slice("v4", "8x16x16")
    model = ts.models.load("bert-480b")
    mesh = {"fsdp": 256, "tensor": 8}
    rules = {"act_embed": "tensor"}
    plan = ts.Plan(mesh=mesh, rules=rules, seq_len=512, global_batch=4096)
    print(ts.simulate(model, plan, pod))

Names of the front door load on first use, so that importing the package stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpusim import models, xla
    from tpusim.errors import TpusimError
    from tpusim.explain import explain_collectives, explain_placement
    from tpusim.hardware import Chip, Slice, load_chip
    from tpusim.lines import explain_lines
    from tpusim.maxtext import from_maxtext
    from tpusim.partition import Plan
    from tpusim.plan_result import PlanResult
    from tpusim.replay_result import ReplayResult
    from tpusim.report import write_report
    from tpusim.result import Result
    from tpusim.runfile import read_run
    from tpusim.search import Space
    from tpusim.search.sweep import sweep
    from tpusim.simulation import simulate
    from tpusim.stage_table import explain_pipeline
    from tpusim.validation import validate

__version__ = "0.1.0"

_HOMES = {
    "Chip": "tpusim.hardware",
    "Plan": "tpusim.partition",
    "PlanResult": "tpusim.plan_result",
    "ReplayResult": "tpusim.replay_result",
    "Result": "tpusim.result",
    "Slice": "tpusim.hardware",
    "Space": "tpusim.search",
    "TpusimError": "tpusim.errors",
    "explain_collectives": "tpusim.explain",
    "explain_lines": "tpusim.lines",
    "explain_pipeline": "tpusim.stage_table",
    "explain_placement": "tpusim.explain",
    "from_maxtext": "tpusim.maxtext",
    "load_chip": "tpusim.hardware",
    "models": "tpusim",
    "read_run": "tpusim.runfile",
    "simulate": "tpusim.simulation",
    "sweep": "tpusim.search",
    "validate": "tpusim.validation",
    "write_report": "tpusim.report",
    "xla": "tpusim",
}

__all__ = [
    "Chip",
    "Plan",
    "PlanResult",
    "ReplayResult",
    "Result",
    "Slice",
    "Space",
    "TpusimError",
    "__version__",
    "explain_collectives",
    "explain_lines",
    "explain_pipeline",
    "explain_placement",
    "from_maxtext",
    "load_chip",
    "models",
    "read_run",
    "simulate",
    "sweep",
    "validate",
    "write_report",
    "xla",
]


def __getattr__(name: str) -> Any:
    if name in ("models", "xla"):
        return import_module(f"tpusim.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tpusim' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
