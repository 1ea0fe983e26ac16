"""Parts that all layers share: the dimensions of tokens, weights and norms."""

from tpusim.graph import COMPUTE, Pointwise, Tensor, TensorRole, function

NORM_FLOPS = 6.0
ROTARY_FLOPS = 6.0
"""Vector operations per element; see `block.ACTIVATION_FLOPS`."""

TOKEN = ("batch", "seq")
RESIDUAL = (*TOKEN, "embed")


def weight(of: str, name: str, *dims: str) -> Tensor:
    """Return a weight of the layer called `of`."""
    return Tensor(f"{of}/{name}", dims, TensorRole.PARAM, COMPUTE)


def norm(name: str, x: Tensor, out: Tensor, over: str = "embed") -> Pointwise:
    """Return a normalisation over one dimension, with its scale.

    It computes in f32 (Zhang and Sennrich, arXiv:1910.07467, equation 4): its linearisation reads
    the operand in f32, and what is scaled, in the activations' dtype. Not counted: two numbers a
    token.
    """
    scale = Tensor(f"{name}_scale", (over,), TensorRole.PARAM)
    wide = Tensor(f"{name}_operand", x.dims, dtype="f32")
    unscaled = Tensor(f"{name}_unscaled", x.dims)
    residuals = (wide, unscaled, scale)
    return Pointwise(
        name,
        (x, scale),
        (out,),
        NORM_FLOPS,
        over=(over,),
        residuals=residuals,
        function=function("rms_norm"),
    )
