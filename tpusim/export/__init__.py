"""Export: the training step of a plan as a JAX program."""

from tpusim.export.plan_to_jax import export_jax, export_step
from tpusim.export.step_source import ExportedStep

__all__ = ["ExportedStep", "export_jax", "export_step"]
