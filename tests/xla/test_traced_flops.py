"""FLOPs counted of a function that JAX has lowered, against closed forms."""

from importlib import import_module
from importlib.util import find_spec

import pytest

if not find_spec("jax"):
    pytest.skip("needs pip install 'tpusim[xla]'", allow_module_level=True)

import jax
import jax.numpy as jnp
from compiler_parts import lowered_flops
from jax import lax

ROWS, WIDTH, LAYERS = 32, 16, 5
ONE = 2 * ROWS * WIDTH * WIDTH
W = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def walk_ops(fn, *args, padding_taps=True, **options):
    lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",))
    found = lowered_flops(lowered, **options)
    return found.total if padding_taps else found.total - found.on_padding


def layer(x, w):
    return jnp.tanh(x @ w), None


def loss(w, x, body=layer):
    return lax.scan(body, x, w)[0].sum()


def test_a_loop_counts_its_trips_and_a_gradient_twice_the_forward_pass() -> None:
    assert walk_ops(loss, W, X) == LAYERS * ONE
    assert walk_ops(jax.grad(loss), W, X) == 3 * LAYERS * ONE


@pytest.mark.parametrize(
    ("start", "goes_on", "step", "trips"),
    [
        (0, lambda at: at < 128, 1, 128),
        (100, lambda at: at >= 2, -3, 33),
        (0, lambda at: at != 8, 2, 4),
        (5, lambda at: at < 5, 1, 0),
        (0, lambda at: (at < 128) & (at != 7), 1, 1),
    ],
)
def test_a_while_counts_the_trips_that_its_counter_says(start, goes_on, step, trips) -> None:
    def many(x, w):
        def body(carry):
            at, x = carry
            return (at + step if step > 0 else at - -step), x @ w

        return lax.while_loop(lambda carry: goes_on(carry[0]), body, (start, x))[1]

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    assert walk_ops(many, X, w) == trips * ONE


def test_what_is_recomputed_counts_only_when_asked_for() -> None:
    again = jax.grad(lambda w, x: loss(w, x, jax.checkpoint(layer)))
    assert walk_ops(again, W, X) == 3 * LAYERS * ONE
    assert walk_ops(again, W, X, recomputed=True) == 4 * LAYERS * ONE


def test_of_branches_the_costlier_counts() -> None:
    def either(x, w):
        return lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert walk_ops(either, X, jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)) == 2 * ONE


@jax.custom_vjp
def by_rule(x, w):
    return x @ w


by_rule.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


def test_custom_derivatives_count_once_and_only_what_is_needed_of_them() -> None:
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    assert walk_ops(by_rule, X, w) == ONE

    def square(w, x):
        return (by_rule(x, w) ** 2).sum()

    assert walk_ops(jax.grad(square, (0, 1)), w, X) == 3 * ONE
    assert walk_ops(jax.grad(square), w, X) == 2 * ONE, "the rule's gradient of x is for nobody"


def test_inside_shard_map_the_shapes_are_one_device_s() -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    whole = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(jnp.dot, mesh=mesh, in_specs=(spec, whole), out_specs=spec)
    assert walk_ops(mapped, X, w) == ONE


@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "SAME"), (1, "VALID")])
def test_a_convolution_and_both_its_gradients_need_the_same(stride: int, padding: str) -> None:
    """Taps on padding are multiplied, the holes of a strided gradient are not."""
    size, taps = 12, 3

    def convolved(x, w):
        return lax.conv_general_dilated(x, w, (stride, stride), padding)

    x = jax.ShapeDtypeStruct((2, 4, size, size), jnp.float32)
    w = jax.ShapeDtypeStruct((8, 4, taps, taps), jnp.float32)
    outputs = size // stride if padding == "SAME" else size - taps + 1
    one = 2 * 2 * 4 * 8 * (taps * outputs) ** 2
    assert walk_ops(convolved, x, w) == one
    gradients = jax.grad(lambda x, w: jnp.square(convolved(x, w)).sum(), (0, 1))
    assert walk_ops(gradients, x, w) == 3 * one


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 3])
def test_without_taps_on_padding_flops_are_those_of_xla(stride: int, dilation: int) -> None:
    """As its own cost analysis counts them, forward and of both gradients."""

    def convolved(x, w):
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", rhs_dilation=(dilation, dilation)
        )

    x = jax.ShapeDtypeStruct((2, 4, 12, 9), jnp.float32)
    w = jax.ShapeDtypeStruct((8, 4, 3, 3), jnp.float32)
    gradients = jax.grad(lambda x, w: convolved(x, w).sum(), (0, 1))
    for fn in (convolved, gradients):
        outputs = 8 * 2 * -(-12 // stride) * -(-9 // stride)
        summed = jax.jit(fn).lower(x, w).cost_analysis()["flops"]
        counted = walk_ops(fn, x, w, padding_taps=False)
        assert summed == pytest.approx(counted, abs=2 * outputs), "but for the sum of the outputs"
        assert counted < walk_ops(fn, x, w)


@pytest.mark.parametrize("causal", [True, False])
def test_splash_attention_counts_what_is_useful(causal: bool) -> None:
    """Two products forward and four backward; causal ones on half of the scores."""
    splash = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_"
    kernels, masks = import_module(f"{splash}kernel"), import_module(f"{splash}mask")
    batch, heads, seq, width = 2, 4, 1024, 128
    each = (masks.CausalMask if causal else masks.FullMask)((seq, seq))
    kernel = kernels.make_splash_mha(
        mask=masks.MultiHeadMask([each] * heads), head_shards=1, q_seq_shards=1
    )
    x = jax.ShapeDtypeStruct((batch, heads, seq, width), jnp.bfloat16)
    seen = (seq + 1) / 2 if causal else seq
    found = walk_ops(jax.grad(lambda *a: jax.vmap(kernel)(*a).sum(), argnums=(0, 1, 2)), x, x, x)
    assert found == pytest.approx(6 * 2 * batch * heads * seq * seen * width, rel=1e-3)


def test_complex_numbers_are_multiplied_in_three_real_products() -> None:
    x, w = (jax.ShapeDtypeStruct((n, WIDTH), jnp.complex64) for n in (ROWS, WIDTH))
    assert walk_ops(jnp.matmul, x, w) == 3 * ONE
