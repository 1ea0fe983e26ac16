"""Matmuls and lookups of weights that are sent or multiplied in dtypes of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import Array, shard
from tpusim.export.jax_library.step_constants import (
    BACKWARD,
    COMPUTE,
    FOR_WEIGHTS,
    FORWARD,
    GATHERED,
    MESH,
    REDUCED,
)


def in_compute_dtype(w: Array, gathered: P | None) -> Array:
    """Return a weight as matmuls read it; with a sharding, cast after it is gathered to that.

    It is gathered as bits: of floats the compiler would gather no more than is read of them.
    """
    if gathered is None:
        return w.astype(COMPUTE)
    word = jnp.uint16 if jnp.dtype(GATHERED).itemsize == 2 else jnp.uint32
    bits = w.astype(GATHERED).view(word)
    return shard(bits, gathered).view(GATHERED).astype(COMPUTE)


def lookup(table: Array, ids: Array, gathered: P | None = None) -> Array:
    """Return rows of a table; what each row is read for adds to its gradient as REDUCED.

    gathered: sharding to which the table is gathered in a dtype of its own.
    """

    def read(table: Array) -> Array:
        return in_compute_dtype(table, gathered)[ids]

    def backward(table: Array, grad: Array) -> tuple[Array]:
        sums = jnp.zeros(table.shape, REDUCED).at[ids].add(grad.astype(REDUCED))
        return (sums.astype(table.dtype),)

    rows = jax.custom_vjp(read)
    rows.defvjp(lambda table: (read(table), table), backward)
    return rows(table)


def weight_einsum(
    formula: str,
    x: Array,
    w: Array,
    gathered: P | None = None,
    preferred_element_type: Any = None,
) -> Array:
    """Multiply x by a weight, whose gradient leaves its matmul as REDUCED.

    gathered: sharding to which the weight is gathered in a dtype of its own.
    preferred_element_type: dtype of the product; that of x if it is not given.
    """
    wide = preferred_element_type
    left, right, made = formula.replace("->", ",").split(",")

    def forward(x: Array, w: Array) -> Array:
        used = in_compute_dtype(w, gathered)
        return jnp.einsum(formula, x, used, preferred_element_type=wide)

    def backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
        x, w = saved
        grad = grad.astype(x.dtype)
        dx = jnp.einsum(f"{made},{right}->{left}", grad, in_compute_dtype(w, gathered))
        dw = jnp.einsum(f"{left},{made}->{right}", x, grad, preferred_element_type=REDUCED)
        return dx, dw.astype(w.dtype)

    product = jax.custom_vjp(forward)
    product.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return product(x, w)


def quantised(x: Array, summed: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """Return x in a narrow dtype, and the scale of each channel along the dimensions `summed`."""
    whole = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    top = jnp.max(jnp.abs(x), axis=summed, keepdims=True).astype(jnp.float32)
    scale = jnp.where(top > 0, top / largest, 1.0)
    narrow = x / scale
    return (jnp.round(narrow) if whole else narrow).astype(dtype), scale


def summed_dims(operand: str, made: str) -> tuple[int, ...]:
    """Return the places of the letters of an operand that the result of an einsum lacks."""
    return tuple(place for place, letter in enumerate(operand) if letter not in made)


def aligned(scale: Array, operand: str, made: str) -> Array:
    """Return the scales of an operand's channels with the dimensions of an einsum's result."""
    kept = [letter for letter in operand if letter in made]
    scale = scale.squeeze(summed_dims(operand, made))
    scale = scale.transpose([kept.index(letter) for letter in made if letter in kept])
    return jnp.expand_dims(
        scale, [place for place, letter in enumerate(made) if letter not in kept]
    )


def narrow_dot(formula: str, x: Array, y: Array) -> Array:
    """Return the product of two operands of the same narrow dtype, before it is scaled."""
    wide = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
    return jnp.einsum(formula, x, y, preferred_element_type=wide)


def narrow_einsum(
    formula: str, x: Array, y: Array, dtype: Any, result: Any, axes: dict[str, Any]
) -> Array:
    """Multiply x and y in `dtype`; each device quantises its own part, and adds up `result`.

    axes: axes of the mesh over which each letter of the formula is divided.
    """
    left, right, made = formula.replace("->", ",").split(",")

    def own(x: Array, y: Array) -> Array:
        if dtype == COMPUTE:
            product = jnp.einsum(formula, x, y, preferred_element_type=result)
        else:
            x, rows = quantised(x, summed_dims(left, made), dtype)
            y, columns = quantised(y, summed_dims(right, made), dtype)
            product = narrow_dot(formula, x, y) * aligned(rows, left, made)
            product = (product * aligned(columns, right, made)).astype(result)
        summed = [axes[letter] for letter in left if letter not in made and letter in axes]
        return lax.psum(product, tuple(jax.tree.leaves(summed))) if summed else product

    specs = [P(*(axes.get(letter) for letter in part)) for part in (left, right, made)]
    run = jax.shard_map(own, in_specs=tuple(specs[:2]), out_specs=specs[2], check_vma=False)
    return run(x, y)


def quantised_einsum(formula: str, x: Array, w: Array, /, **axes: Any) -> Array:
    """Multiply x by a weight in narrow dtypes: each of the three matmuls of training in its own.

    axes: axes of the mesh over which each letter of the formula is divided.
    """
    left, right, made = formula.replace("->", ",").split(",")
    spec = P(*(axes.get(letter) for letter in right))

    def whole(w: Array) -> Array:
        return w.astype(COMPUTE) if GATHERED == COMPUTE else in_compute_dtype(w, spec)

    def forward(x: Array, w: Array) -> Array:
        return narrow_einsum(formula, x, whole(w), FORWARD, COMPUTE, axes)

    def backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
        x, w = saved
        to_x, to_w = f"{made},{right}->{left}", f"{left},{made}->{right}"
        dx = narrow_einsum(to_x, grad, whole(w), BACKWARD, COMPUTE, axes)
        dw = narrow_einsum(to_w, x, grad, FOR_WEIGHTS, REDUCED, axes)
        return dx, dw.astype(w.dtype)

    product = jax.custom_vjp(forward)
    product.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return product(x, w)


def in_parts(x: Array, operand: str, counts: dict[str, int]) -> tuple[Array, str]:
    """Return x with the dimensions of `counts` in two, and its letters: capitals for the parts."""
    sizes = [
        (counts[letter], size // counts[letter]) if letter in counts else (size,)
        for letter, size in zip(operand, x.shape, strict=True)
    ]
    letters = [letter.upper() + letter if letter in counts else letter for letter in operand]
    return x.reshape(sum(sizes, ())), "".join(letters)


def sum_of_parts(
    formula: str,
    x: Array,
    y: Array,
    result: Any,
    axes: dict[str, Any],
    scale: Array | None = None,
) -> Array:
    """Multiply x and y in int8 or fp8, with scales for each device's part of what is summed.

    Operands are quantised as they are sharded, before they are gathered; parts add up as `result`.

    axes: axes of the mesh over which each letter of the formula is divided.
    scale: of the result, if y is quantised already.
    """
    left, right, made = formula.replace("->", ",").split(",")
    counts = {
        letter: int(np.prod([MESH[axis] for axis in jax.tree.leaves(axes[letter])]))
        for letter in left
        if letter not in made and letter in axes
    }
    x, left = in_parts(x, left, counts)
    y, right = in_parts(y, right, counts)
    made = "".join(letter.upper() for letter in counts) + made
    x, rows = quantised(x, summed_dims(left, made), FOR_WEIGHTS if scale is None else GATHERED)
    if scale is None:
        y, columns = quantised(y, summed_dims(right, made), FOR_WEIGHTS)
        scale = aligned(columns, right, made)
    product = narrow_dot(f"{left},{right}->{made}", x, y) * aligned(rows, left, made)
    return (product * scale).astype(result).sum(tuple(range(len(counts))), dtype=result)


def narrow_weight_einsum(formula: str, x: Array, w: Array, stored: P, /, **axes: Any) -> Array:
    """Multiply x by a weight that is quantised before it is gathered, once for both its uses.

    Backward the weight's scales are along what is summed, and so they are put on the gradient.

    stored: sharding of the weight.
    axes: axes of the mesh over which each letter of the formula is divided.
    """
    left, right, made = formula.replace("->", ",").split(",")

    def narrow(w: Array) -> tuple[Array, Array]:
        values, scale = quantised(w.astype(COMPUTE), summed_dims(right, made), GATHERED)
        return shard(shard(values, stored), P(*(axes.get(letter) for letter in right))), scale

    def forward(x: Array, w: Array) -> Array:
        values, columns = narrow(w)
        return sum_of_parts(formula, x, values, COMPUTE, axes, aligned(columns, right, made))

    def backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
        x, w = saved
        values, columns = narrow(w)
        scaled, one = grad * aligned(columns, right, made), jnp.ones((), jnp.float32)
        dx = sum_of_parts(f"{made},{right}->{left}", scaled, values, COMPUTE, axes, one)
        to_w = f"{left},{made}->{right}"
        if FOR_WEIGHTS == COMPUTE:
            dw = narrow_einsum(to_w, x, grad, FOR_WEIGHTS, REDUCED, axes)
        else:
            dw = sum_of_parts(to_w, x, grad, REDUCED, axes)
        return dx, dw.astype(w.dtype)

    product = jax.custom_vjp(forward)
    product.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return product(x, w)
