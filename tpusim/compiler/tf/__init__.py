"""TensorFlow's training steps as JAX functions. TensorFlow is not imported before it is needed."""

from tpusim.compiler.tf.step import StepVariable, TensorFlowStep, tensorflow

__all__ = ["StepVariable", "TensorFlowStep", "tensorflow"]
