"""Convolution nets of `conv_nets` as JAX functions, of the expressions of exported steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from conv_nets import ConvNet
from jax import lax
from jax.sharding import PartitionSpec as P
from steps import checked_rules

from tpusim.export.jax_library.images import standardise
from tpusim.export.names import value_name, weight_name
from tpusim.export.operations import expression
from tpusim.export.step_context import StepContext
from tpusim.graph import Tensor, TensorRole
from tpusim.partition import layouts
from tpusim.plan import Plan

NAMES = {
    "jax": jax, "jnp": jnp, "lax": lax, "P": P, "standardise": standardise,
    "mean_square": lambda x: jnp.mean(jnp.square(x.astype(jnp.float32)), (1, 2, 3)),
    "shard": lax.with_sharding_constraint,
}  # fmt: skip


def loss_of(net: ConvNet, plan: Plan, sharded: bool) -> tuple[Callable[..., Any], list[Any]]:
    """The mean loss of an image and the weights, by name; and their shapes, the image first."""
    graph = net.graph()
    context = StepContext(
        graph, plan, layouts(graph, plan.sharding, checked_rules(plan, graph)), frozenset(), {}, 1
    )
    lines = ["def loss(image, w):"]
    for op in graph.ops:
        made = op.outputs[0]
        value = expression(op, context)
        if sharded and made.dims != ("batch",):
            value = f"shard({value}, {context.value_spec(made)})"
        lines.append(f"    {value_name(made)} = {value}")
    source = "\n".join([*lines, f"    return jnp.mean({value_name(graph.loss)})"])
    names = dict(NAMES)
    exec(source, names)
    weights = {weight_name(p.tensor): _shape(net, p.tensor) for p in graph.parameters}
    return names["loss"], [_shape(net, graph.ops[0].inputs[0]), weights]


def _shape(net: ConvNet, tensor: Tensor) -> Any:
    wide = tensor.role is TensorRole.PARAM and tensor.dtype == "f32"
    return jax.ShapeDtypeStruct(
        tuple(net.dims[dim] for dim in tensor.dims), jnp.float32 if wide else jnp.bfloat16
    )
