"""Branches of Pallas kernels (`pl.when`), compiled: products count where their conditions hold."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from extent import thorough

import tpusim as ts

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

BLOCK = 256
GRID = (4, 2, 8)
ONE = 2 * BLOCK**3


def branched(write: Callable[..., None]) -> Callable[..., Any]:
    """A kernel over a grid, which writes its result by the branches of `write`."""
    from jax.experimental import pallas as pl

    def kernel(x: Any, y: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return pl.pallas_call(
            lambda flag, x, y, out: write(pl, jnp, flag, x, y, out),
            grid=GRID,
            in_specs=[
                pl.BlockSpec((8, 128), lambda i, j, k: (0, 0)),
                pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
                pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        )(jnp.zeros((8, 128), jnp.int32), x, y)

    return kernel


def product(jnp: Any, x: Any, y: Any) -> Any:
    return jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)


def opposite(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    """The first step sets, the others add: each multiplies once."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        out[...] = product(jnp, x, y)

    @pl.when(pl.program_id(2) != 0)
    def _() -> None:
        out[...] += product(jnp, x, y)


def after(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    """The same, of the steps after the first, and by a negation."""
    first = pl.program_id(2) < 1
    pl.when(first)(lambda: out.__setitem__(..., product(jnp, x, y)))
    pl.when(jnp.logical_not(first))(lambda: out.__setitem__(..., out[...] + product(jnp, x, y)))


def first_and_last(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        out[...] = product(jnp, x, y)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        out[...] += product(jnp, x, y)


def nested(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    @pl.when(pl.program_id(0) > 0)
    def _() -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            out[...] = product(jnp, x, y)


def independent(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        out[...] = product(jnp, x, y)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        out[...] += product(jnp, x, y)


def chosen(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    """What data decide: one of two opposites."""
    yes = flag[0, 0] > 0
    pl.when(yes)(lambda: out.__setitem__(..., product(jnp, x, y)))
    pl.when(jnp.logical_not(yes))(lambda: out.__setitem__(..., out[...] + product(jnp, x, y)))


def chosen_apart(pl: Any, jnp: Any, flag: Any, x: Any, y: Any, out: Any) -> None:
    """What other data decide: both, at the first steps only."""
    first = pl.program_id(2) == 0
    pl.when(first & (flag[0, 0] > 0))(lambda: out.__setitem__(..., product(jnp, x, y)))
    pl.when(first & (flag[1, 0] > 0))(lambda: out.__setitem__(..., product(jnp, x, y)))


STEPS = 4 * 2 * 8


@pytest.mark.parametrize(
    ("write", "products"),
    [
        (opposite, STEPS),
        thorough(after, STEPS),
        thorough(first_and_last, 2 * 4 * 2),
        thorough(nested, 3 * 2),
        (independent, 2 * 8 + 4 * 8),
        thorough(chosen, STEPS),
        thorough(chosen_apart, 2 * 4 * 2),
    ],
)
def test_products_count_where_they_are_done(write: Callable[..., None], products: int) -> None:
    import jax
    import jax.numpy as jnp

    rows, columns, deep = (size * BLOCK for size in GRID)
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, deep), (deep, columns))]
    compiled = ts.xla.compile(
        branched(write), *args, name="k", slice="v5e:1x1", mesh={"x": 1}, cache=False
    )
    found = ts.simulate(compiled)
    assert not found.unknown
    assert float(found.flops.total) == compiled.model_flops == products * ONE


@pytest.mark.parametrize("trips", [thorough(1), 2, thorough(5)])
def test_a_pipeline_s_places_are_those_of_its_loop(trips: int) -> None:
    """`emit_pipeline` runs its grid as a loop that carries the places."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def step(x: Any, y: Any, out: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            out[...] = product(jnp, x, y)

        @pl.when(pl.program_id(2) > 0)
        def _() -> None:
            out[...] += product(jnp, x, y)

    def kernel(x: Any, y: Any, out: Any) -> None:
        pltpu.emit_pipeline(
            step,
            grid=(3, 2, trips),
            in_specs=[
                pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
                pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
            ],
            out_specs=[pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j))],
        )(x, y, out)

    def whole(x: Any, y: Any) -> Any:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        )(x, y)

    shapes = ((3 * BLOCK, trips * BLOCK), (trips * BLOCK, 2 * BLOCK))
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    compiled = ts.xla.compile(whole, *args, name="k", slice="v5e:1x1", mesh={"x": 1}, cache=False)
    found = ts.simulate(compiled)
    assert float(found.flops.total) == compiled.model_flops == 3 * 2 * trips * ONE
