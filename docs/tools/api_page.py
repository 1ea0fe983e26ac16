"""Signatures and summaries of public names: docs/api.md, and the writer's methods."""

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

from tpusim.graph import GraphWriter

GROUPS = {
    "Simulation": "simulate Result PlanResult ReplayResult write_report",
    "Slices and chips": "Slice Chip load_chip availability Availability",
    "Models": "models models.Transformer models.load models.names models.from_hf models.hf_notes "
    "models.hf_dimensions models.source",
    "Plans and run files": "Plan Input InputUse Measured read_run write_run from_maxtext",
    "Compiled programs": "xla xla.compile xla.load xla.make_mesh xla.torch xla.tensorflow "
    "xla.Compiled xla.MemoryReport xla.TorchStep xla.TensorFlowStep xla.StepVariable",
    "Plans as JAX": "check PlanCheck export_jax check_serving export_serving StepLoad",
    "Advice, comparison and explanation": "Advice Limit Change compare Comparison "
    "explain_placement explain_collectives explain_pipeline explain_lines",
    "Sweeps and searches": "Space sweep PlanSpace slices_of bound search cluster scaling Scaling "
    "with_measured",
    "Training runs": "train TrainingRun Evaluations Checkpoints Failures Stragglers TrainingResult",
    "Serving": "serve ServingPlan ServingResult Engine Traffic Traffic.poisson Traffic.burst "
    "Traffic.closed_loop Traffic.read Lengths read_serving TrafficKeys ServerOptions "
    "ServerFailures knee search_servers ServerSpace Targets",
    "Profiles and measurements": "read_profile Profile diagnose Diagnosis validate calibrate "
    "Calibration",
    "Figures": "plot plot.breakdown plot.timeline plot.memory plot.utilisation plot.roofline "
    "plot.torus plot.axes plot.pipeline plot.ranking plot.mesh_heatmap plot.scaling",
    "Errors": "TpusimError",
}
"""The names of `tpusim` in the order of the page."""

BY_KEYS = {"Plan": "plan", "models.Transformer": "model", "Input": "input", "Measured": "measured"}
"""Classes whose parameters are the keys of a section of a run file."""

CONSTRUCTED = (
    *("Slice", "Space", "PlanSpace", "TrainingRun", "Evaluations", "Checkpoints", "StepLoad"),
    *("Failures", "Stragglers"),
    *("ServerSpace", "Targets", "ServerFailures"),
)
"""Further classes that a user constructs; others are made by functions."""


def listed() -> str:
    """The names by group, each with its signature and the summary of its docstring."""
    parts = []
    for group, names in GROUPS.items():
        items = "\n".join(map(_item, names.split()))
        parts.append(f"## {group}\n\n{items}\n")
    return "\n".join(parts)


def writer() -> str:
    """The methods of the graph writer as a table."""
    lines = ["| method | effect |", "| --- | --- |"]
    for name, method in inspect.getmembers(GraphWriter, inspect.isfunction):
        if not name.startswith("_"):
            lines.append(f"| `w.{name}{signature(method)}` | {summary(method)} |")
    return "\n".join(lines) + "\n"


def signature(called: Any) -> str:
    """The parameters with their defaults, without types and `self`."""
    found = inspect.signature(called)
    kept = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in found.parameters.values()
        if each.name != "self"
    ]
    shown = found.replace(parameters=kept, return_annotation=inspect.Signature.empty)
    return re.sub(r"<[^<>]*>", "...", str(shown))


def summary(value: Any) -> str:
    """The first sentence of the docstring."""
    line = (inspect.getdoc(value) or "").partition("\n")[0]
    return line.partition(". ")[0].removesuffix(".").replace("|", "\\|")


def _item(name: str) -> str:
    value = _named(name)
    if name in BY_KEYS:
        keys = BY_KEYS[name]
        return f"- `ts.{name}(**keys)`: {summary(value)}; [keys](run_file.md#{keys})"
    is_shown = name in CONSTRUCTED or not isinstance(value, type | ModuleType)
    return f"- `ts.{name}{signature(value) if is_shown else ''}`: {summary(value)}"


def _named(name: str) -> Any:
    value: Any = import_module("tpusim")
    for part in name.split("."):
        value = getattr(value, part)
    return value
