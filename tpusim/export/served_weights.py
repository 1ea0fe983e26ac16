"""Weights that are stored in a narrow dtype: each has a scale for each column of its matrix."""

from dataclasses import replace

from tpusim.graph import COMPUTE, Einsum, Tensor, TensorRole

NARROW = ("int8", "fp8")
"""The dtypes of weights that have scales."""


def is_narrow(tensor: Tensor) -> bool:
    """Return True for a weight that is stored in a narrow dtype."""
    return tensor.role is TensorRole.PARAM and tensor.dtype in NARROW


def scale_of(op: Einsum) -> Tensor | None:
    """Return the scale of the narrow weight of a matmul, by which its result is multiplied.

    Its dimensions are those of the weight that are not contracted. None for another weight.
    """
    weight = next(filter(is_narrow, op.inputs), None)
    if weight is None:
        return None
    dims = tuple(dim for dim in weight.dims if dim in op.output.dims)
    return replace(weight, name=weight.name + "_scale", dims=dims, dtype=COMPUTE)
