"""Twins: the JAX program of a plan, which the TPU compiler can compile."""

from tpusim.twin.export import export_jax, export_step
from tpusim.twin.step_source import ExportedStep

__all__ = ["ExportedStep", "export_jax", "export_step"]
