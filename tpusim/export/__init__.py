"""Export: the training step of a plan as a JAX program."""

from tpusim.export.plan_to_jax import export_jax as export_jax
from tpusim.export.plan_to_jax import export_step as export_step
from tpusim.export.serving_to_jax import export_serving as export_serving
from tpusim.export.step_source import ExportedStep as ExportedStep
