"""Learnt terms that are added to activations, biases and positions, and matmuls with a bias."""

from tpusim.graph import GraphWriter, Tensor


def biased(w: GraphWriter, name: str, x: Tensor, *dims: str) -> Tensor:
    """Write the sum of `x` and a bias, `{name}_bias`.

    dims: dimensions of the bias; the last one of `x` where none are given.
    """
    return w.add(f"{name}_biased", x, w.weight(f"{name}_bias", *(dims or x.dims[-1:])))


def linear(w: GraphWriter, name: str, x: Tensor, dim: str) -> Tensor:
    """Write the product of `x` with a weight that replaces its last dimension, and a bias."""
    return biased(w, name, w.dense(name, x, dim))


def learnt_positions(w: GraphWriter, x: Tensor) -> Tensor:
    """Write the sum of [batch, sequence, embed] and a learnt vector for each position."""
    return w.add("positioned", x, w.weight("positions", *x.dims[1:]))
