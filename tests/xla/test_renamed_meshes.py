"""A program that is compiled over meshes with other names of axes, layers and weights: one step."""

from importlib.util import find_spec
from typing import Any

import pytest
from extent import thorough
from renamed_programs import numbers

import tpusim as ts

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

PLAIN = (("a", "b"), ("mlp", "w"))


def compiled(axes: tuple[str, str], words: tuple[str, str], slice_: str) -> Any:
    """A step of gradients whose weights are sharded over both axes, the data over one."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    outer, inner = axes
    layer, weight = words

    def step(state: dict[str, Any], x: Any) -> Any:
        def loss(state: dict[str, Any]) -> Any:
            def body(x: Any, w: Any) -> Any:
                with jax.named_scope(layer):
                    return jnp.tanh(x @ w), None

            return jax.lax.scan(jax.checkpoint(body), x, state[weight])[0].astype("f4").sum()

        return jax.tree.map(lambda w, g: w - g, state, jax.grad(loss)(state))

    step.__name__ = step.__qualname__ = weight
    weights = PartitionSpec(None, (outer, inner))
    return ts.xla.compile(
        step,
        {weight: jax.ShapeDtypeStruct((4, 1024, 1024), jnp.bfloat16)},
        jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16),
        slice=slice_,
        mesh={outer: 4, inner: 2},
        in_shardings=({weight: weights}, PartitionSpec(outer)),
        donate=0,
        cache=False,
        until="schedule",
    )


@pytest.mark.parametrize(
    ("axes", "words", "slice_"),
    [
        (("x", "y"), ("splash_mha", "flash_attention"), "v5e:2x4"),
        thorough(("y", "x"), ("rematted_computations", "jvp"), "v5e:2x4"),
        thorough(("data", "stage"), ("gmm", "paged_attention"), "v5e:2x4"),
        thorough(("z", "die"), ("optimizer", "adam"), "v4:2x2x2"),
        thorough(("y", "z"), ("while_body", "transpose"), "v4:2x2x2"),
        thorough(("x", "core"), ("ragged_dot", "fusion"), "7x:2x2x1"),
    ],
)
def test_names_change_no_number(axes: tuple[str, str], words: tuple[str, str], slice_: str) -> None:
    found, wanted = (numbers(compiled(*each, slice_)) for each in ((axes, words), PLAIN))
    for key, value in wanted.items():
        assert found[key] == value, key
