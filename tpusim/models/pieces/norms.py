"""Normalisations."""

from dataclasses import replace

from tpusim.graph import GraphWriter, Pointwise, Tensor, TensorRole, function

NORM_FLOPS = 6.0
"""Vector operations per element; see `mlp.ACTIVATION_FLOPS`."""


def norm(w: GraphWriter, name: str, x: Tensor, over: str = "embed") -> Tensor:
    """Write a normalisation over one dimension, with its scale, and return its result.

    It computes in f32 (Zhang and Sennrich, arXiv:1910.07467, equation 4): its linearisation reads
    the operand in f32, and what is scaled, in the activations' dtype. Not counted: two numbers a
    token.
    """
    out = w.tensor(name, x.dims)
    w.write(norm_op(x, out, w.dim(over)))
    return out


def norm_op(x: Tensor, out: Tensor, over: str) -> Pointwise:
    """Return the operation of a normalisation, which is named after its result."""
    name = out.name
    scale = Tensor(f"{name}_scale", (over,), TensorRole.PARAM)
    wide = Tensor(f"{name}_operand", x.dims, dtype="f32")
    unscaled = Tensor(f"{name}_unscaled", x.dims)
    return Pointwise(
        name,
        (x, scale),
        (out,),
        NORM_FLOPS,
        over=(over,),
        residuals=(wide, unscaled, scale),
        function=function("rms_norm"),
    )


def layer_norm(w: GraphWriter, name: str, x: Tensor, over: str = "embed") -> Tensor:
    """Write a normalisation by mean and variance over one dimension, with scale and shift.

    Ba, Kiros and Hinton, arXiv:1607.06450, equation 3. It computes in f32, as `norm` does.
    """
    out = w.tensor(name, x.dims)
    made = norm_op(x, out, w.dim(over))
    learnt = (*made.inputs, w.weight(f"{name}_shift", over))
    w.write(replace(made, inputs=learnt, statistics=2, function=function("layer_norm")))
    return out
