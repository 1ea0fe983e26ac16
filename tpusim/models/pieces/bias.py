"""Terms that are learnt and added to activations: biases and positions."""

from tpusim.graph import ADD, GraphWriter, Tensor


def biased(w: GraphWriter, short: str, x: Tensor, *dims: str) -> Tensor:
    """Write the sum of `x` and a weight, and return it: of the shape of `x`.

    The gradient of `x` is that of the sum; that of the weight is summed over all other dimensions.

    short: name of the weight; the result is called `{short}_added`.
    dims: dimensions of the weight, of those of `x`.
    """
    made = w.tensor(f"{short}_added", x.dims)
    terms = (x, w.weight(short, *dims))
    return w.pointwise(short, terms, made, 1.0, linear=True, keeps="", function=ADD)


def learnt_positions(w: GraphWriter, x: Tensor) -> Tensor:
    """Write the sum of [batch, sequence, embed] and a learnt vector for each position."""
    return biased(w, "positions", x, *x.dims[1:])
