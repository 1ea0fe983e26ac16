"""Modules of PyTorch as functions of JAX, through torchax.

A module is traced as it is, Hugging Face's too: each submodule's name becomes the scope of its
operations, and their lines are those of the files that define the modules. Weights are shapes
alone, so that a module may be made on the device `meta`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from os import sep
from pathlib import Path
from typing import Any

from tpusim.base.errors import CompileError

TESTED = {"torch": "2.12.1", "torchax": "0.0.13"}
"""Versions that work together: torchax 0.0.13 uses operators that torch 2.13 has removed."""
_INSTALL = f"pip install {' '.join(f'{name}=={version}' for name, version in TESTED.items())}"


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchStep:
    """A module of PyTorch as a function for `ts.xla.compile(step, *step.inputs, ...)`.

    inputs: weights by name, buffers by name, the optimizer's state if it trains, and the batch, as
        `jax.ShapeDtypeStruct`s.
    trains: True if a call returns new weights, buffers, state and the loss; otherwise it returns
        the module's results as a list of arrays.
    """

    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    trains: bool
    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Run the step on arrays of JAX, or trace it."""
        return self.fn(*args)

    def placed(self, weights: Mapping[str, Any], batch: Any = None) -> dict[str, Any]:
        """Return the shardings as `ts.xla.compile` takes them, and donation of the state.

        weights: `PartitionSpec`s by patterns of names, such as `"*.q_proj.weight"`. The first that
            fits a weight's name holds, for the optimizer's state too; others are replicated.
        batch: `PartitionSpec` of all arrays of the batch.

        Raise CompileError for a pattern that fits no weight.
        """
        import jax
        from jax.sharding import PartitionSpec

        for pattern in weights:
            if not any(fnmatchcase(name, pattern) for name in self.inputs[0]):
                names = ", ".join(list(self.inputs[0])[:3])
                raise CompileError(f"no weight is named {pattern!r}; they are {names}, ...")

        def one(path: Sequence[Any], leaf: Any) -> Any:
            names = (getattr(part, "key", None) for part in reversed(path))
            name = next((name for name in names if name in self.inputs[0]), None)
            if name is None or leaf.shape != self.inputs[0][name].shape:
                return PartitionSpec()
            fits = (spec for pattern, spec in weights.items() if fnmatchcase(name, pattern))
            return next(fits, PartitionSpec())

        *state, _ = self.inputs
        kept = jax.tree_util.tree_map_with_path(one, tuple(state))
        inward = (*kept, PartitionSpec() if batch is None else batch)
        if not self.trains:
            return {"in_shardings": inward}
        donated = tuple(range(len(state)))
        return {"in_shardings": inward, "out_shardings": (*kept, None), "donate": donated}


def torch_step(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
) -> TorchStep:
    """Return a `torch.nn.Module` as a function for `ts.xla.compile`, by way of torchax.

    module: in the mode that it is in, `train()` or `eval()`; on the device `meta` it takes no
        memory.
    args, kwargs: of a call of the module. Tensors, whose values do not matter, and constants.
    optimizer: one of optax, to make a training step; without it, a step is a forward pass.
    loss: from the module's result to a scalar tensor; by default its `loss`, as Hugging Face's
        models return it for `labels`.

    Raise CompileError if torch or torchax is missing or they do not fit each other, or `module` is
    no module. Errors of the module pass through.
    """
    torchax = _torchax()
    import torch

    if not isinstance(module, torch.nn.Module):
        raise CompileError(f"module is {type(module).__name__}; give a torch.nn.Module")
    environment = _environment_class()()
    with torch.no_grad():
        states, run = torchax.extract_jax(module, environment)
    environment.shapes_only = False  # tensors that the module makes in its call have values
    trained = {name for name, each in module.named_parameters() if each.requires_grad}
    weights = {name: each for name, each in states.items() if name in trained}
    buffers = {name: each for name, each in states.items() if name not in trained}
    shapes, tree = _split((tuple(args), dict(kwargs or {})))

    def forward(weights: Any, buffers: Any, batch: Any) -> Any:
        given, named = tree(batch)
        with _scopes(module):
            return run({**weights, **buffers}, given, named)

    name = type(module).__name__
    if optimizer is None:
        inputs: tuple[Any, ...] = (weights, buffers, shapes)
        return TorchStep(fn=_inference(forward), inputs=inputs, trains=False, __name__=name)
    inputs = (weights, buffers, _state(optimizer, weights), shapes)
    fn = _training(forward, optimizer, loss or _own_loss)
    return TorchStep(fn=fn, inputs=inputs, trains=True, __name__=name)


def _inference(forward: Callable[..., Any]) -> Callable[..., Any]:
    def infer(weights: Any, buffers: Any, batch: Any) -> list[Any]:
        from torch.utils import _pytree

        return [
            each
            for each in _pytree.tree_leaves(forward(weights, buffers, batch))
            if _is_array(each)
        ]

    return infer


def _training(
    forward: Callable[..., Any], optimizer: Any, loss: Callable[[Any], Any]
) -> Callable[..., Any]:
    def train(weights: Any, buffers: Any, state: Any, batch: Any) -> Any:
        import jax

        def cost(weights: Any) -> Any:
            return loss(forward(weights, buffers, batch))

        found, gradients = jax.value_and_grad(cost)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        new = jax.tree.map(lambda weight, by: (weight + by).astype(weight.dtype), weights, updates)
        return new, buffers, state, found

    return train


def _own_loss(result: Any) -> Any:
    found = result.get("loss") if hasattr(result, "get") else getattr(result, "loss", None)
    if found is None:
        raise CompileError(
            "the module's result has no loss; give loss=, a function of the result, or labels in "
            "kwargs"
        )
    return found


def _state(optimizer: Any, weights: Any) -> Any:
    import jax

    return jax.eval_shape(optimizer.init, weights)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _split(given: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the tensors of arguments as shapes, and a function that puts arrays in their place."""
    import torch
    from torch.utils import _pytree

    leaves, tree = _pytree.tree_flatten(given)
    places = [at for at, each in enumerate(leaves) if isinstance(each, torch.Tensor)]

    def filled(arrays: Sequence[Any]) -> Any:
        new = list(leaves)
        for at, array in zip(places, arrays, strict=True):
            new[at] = array
        return _pytree.tree_unflatten(new, tree)

    return [_shape(leaves[at]) for at in places], filled


@contextmanager
def _scopes(module: Any) -> Iterator[None]:
    """Let each submodule run in a scope of its name, less the name of the module that calls it."""
    import jax

    entered: list[tuple[str, ExitStack]] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            around = entered[-1][0] if entered else ""
            own = name.removeprefix(f"{around}.") if around else name
            scope = ExitStack()
            scope.enter_context(jax.named_scope(own))
            entered.append((name, scope))

        return hook

    def leave(*_: Any) -> None:
        entered.pop()[1].close()

    with ExitStack() as hooks:
        for name, each in module.named_modules():
            if name:
                made = each.register_forward_pre_hook(enter(name))
                hooks.callback(made.remove)
                hooks.callback(each.register_forward_hook(leave, always_call=True).remove)
        yield


@cache
def _torchax() -> Any:
    """Return the package torchax, whose lines, and PyTorch's, JAX is told to leave out."""
    try:
        import torch
        import torchax
    except ImportError as error:
        raise CompileError(
            f"a module of PyTorch needs torch and torchax ({error}); {_INSTALL}"
        ) from error
    except AttributeError as error:
        raise CompileError(
            f"this torchax does not work with this torch ({str(error)[:200]}); {_INSTALL}"
        ) from error
    from jax._src import source_info_util

    for package in (torch, torchax):
        source_info_util.register_exclusion(f"{Path(package.__file__).parent}{sep}")
    return torchax


@cache
def _environment_class() -> type[Any]:
    """Return torchax's environment, in which tensors of the meta device have zeros for values."""
    import jax.numpy as jnp
    import torch
    from torch.utils import _pytree
    from torchax.tensor import Environment

    class MetaEnvironment(Environment):  # type: ignore[misc]
        shapes_only = True

        def t2j_copy(self, tensors: Any) -> Any:
            return _pytree.tree_map_only(torch.Tensor, self._copied, tensors)

        def _copied(self, tensor: Any) -> Any:
            if self.shapes_only:
                return _shape(tensor)
            if tensor.device.type == "meta":
                shape = _shape(tensor)
                return jnp.zeros(shape.shape, shape.dtype)
            return super().t2j_copy(tensor)

    return MetaEnvironment


def _shape(tensor: Any) -> Any:
    import jax
    from torchax.ops import mappings

    dtype = jax.dtypes.canonicalize_dtype(mappings.t2j_dtype(tensor.dtype))
    return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)
