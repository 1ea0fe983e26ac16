"""A training step of TensorFlow as a JAX function of its arguments and its variables."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.base.phase import Phase
from tpusim.compiler.flops import StepFlops, module_flops
from tpusim.compiler.hlo.read import read_module
from tpusim.compiler.tf.stablehlo import StableProgram, stable_program
from tpusim.compiler.tf.traced import traced_operations

INSTALL = "pip install 'tpusim[tensorflow]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVariable:
    """A variable that a step captures, or another captured tensor.

    name: Keras's path, such as `block_0/dense/kernel`, or TensorFlow's name.
    dtype: its name, such as `float32`.
    written: True if the step assigns it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    written: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TensorFlowStep:
    """A step of TensorFlow as a function for `ts.xla.compile`, over arrays one after another.

    Its arguments are those of the step, flattened by `tf.nest`, then `variables`. Its results are
    those of the step, then the new values of the written variables.

    inputs: of all arguments, as `jax.ShapeDtypeStruct`s.
    donate: numbers of the arguments that are written variables.
    model_flops: FLOPs of the step's matmuls and convolutions on all devices, without what
        `tf.recompute_grad` recomputes; 0 if they cannot be counted.
    padding_flops: those of taps of convolutions on padding.
    x64: True if an argument or result has 64 bits, which JAX narrows otherwise.
    """

    name: str
    inputs: tuple[Any, ...]
    variables: tuple[StepVariable, ...]
    donate: tuple[int, ...]
    model_flops: float
    padding_flops: float
    x64: bool
    _exported: Any = field(repr=False)

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the results for inputs in the order of `inputs`."""
        if len(inputs) != len(self.inputs):
            raise CompileError(
                f"{self.name} takes {len(self.inputs)} inputs, its arguments and then its "
                f"variables, and {len(inputs)} are given; write *step.inputs"
            )
        return tuple(self._exported.call(*inputs))


def tensorflow(step: Any, *specs: Any) -> TensorFlowStep:
    """Return a step of TensorFlow or Keras as a JAX function for `ts.xla.compile`.

    step: a `tf.function(jit_compile=True)`, such as a train step that assigns variables.
    specs: its arguments: `tf.TensorSpec`s, or tensors, in any nest.

    Nothing is run on a device, and no TPU is needed. Sharding annotations of TensorFlow
    (`xla_sharding.mesh_split`) are in the program; devices are numbered in the order of the mesh.

        step = ts.xla.tensorflow(train_step, tf.TensorSpec((256, 1024), tf.int32))
        ts.xla.compile(step, *step.inputs, donate=step.donate, slice="v5e:4x4", mesh={"data": 16})

    Raise CompileError if TensorFlow is missing, or XLA cannot compile the step.
    """
    if find_spec("tensorflow") is None:
        raise CompileError(f"TensorFlow is not installed; {INSTALL} installs it")
    if not hasattr(step, "experimental_get_compiler_ir"):
        raise CompileError(
            f"step is {step!r:.200}; give a function that tf.function(jit_compile=True) returned"
        )
    concrete = step.get_concrete_function(*specs)
    name = getattr(getattr(step, "python_function", None), "__name__", "") or "step"
    hlo = _hlo(step, specs, name)
    module = read_module(hlo, name, any_compiler=True)
    captured = _captured(concrete)
    operations = traced_operations(concrete.graph, captured.paths)
    program = stable_program(hlo, name, operations)
    _check_inputs(concrete, program, name)
    first = len(concrete.inputs) - len(captured.names)
    aliased = {number for number, _ in module.aliases.values()}
    variables = tuple(
        StepVariable(
            name=each,
            shape=program.inputs[first + at].shape,
            dtype=str(program.inputs[first + at].dtype),
            written=first + at in aliased,
        )
        for at, each in enumerate(captured.names)
    )
    again = {each for each, known in operations.items() if known.phase is Phase.RECOMPUTE}
    flops = module_flops(module, again.__contains__) or StepFlops()
    return TensorFlowStep(
        name=name,
        inputs=_structs(program),
        variables=variables,
        donate=tuple(sorted(aliased)),
        model_flops=flops.total,
        padding_flops=flops.on_padding,
        x64=any(each.dtype.itemsize == 8 for each in (*program.inputs, *program.outputs)),
        _exported=program.exported(name),
    )


def _hlo(step: Any, specs: Sequence[Any], name: str) -> bytes:
    try:
        made = step.experimental_get_compiler_ir(*specs)(
            stage="hlo_serialized", platform_name="CPU"
        )
    except Exception as error:
        if getattr(step, "_jit_compile", True) is not True:
            raise CompileError(f"{name}: write tf.function(jit_compile=True)") from error
        first = (str(error).strip().splitlines() or [""])[0][:500]
        raise CompileError(f"{name}: TensorFlow cannot compile it with XLA: {first}") from error
    return bytes(made)


@dataclass(frozen=True, slots=True)
class _Captured:
    """What a function captures, in order. paths: of variables, by `id` of their placeholders."""

    names: tuple[str, ...]
    paths: dict[int, str]


def _captured(concrete: Any) -> _Captured:
    paths = _keras_paths()
    handles = {
        id(variable.handle): paths.get(id(variable), str(variable.name).partition(":")[0])
        for variable in concrete.graph.variables
    }
    names, placeholders = [], {}
    for outside, inside in zip(
        concrete.captured_inputs, concrete.inputs[-len(concrete.captured_inputs) :], strict=False
    ):
        path = handles.get(id(outside))
        names.append(path or str(inside.name).partition(":")[0])
        if path is not None:
            placeholders[id(inside)] = path
    return _Captured(tuple(names), placeholders)


def _check_inputs(concrete: Any, program: StableProgram, name: str) -> None:
    """Raise CompileError unless the program takes what the function does, in that order."""
    count = len(concrete.inputs)
    if len(program.inputs) != count:
        raise CompileError(
            f"{name}: TensorFlow's program has {len(program.inputs)} inputs, and the function "
            f"takes {count} with what it captures; arguments that XLA needs as constants cannot "
            "be inputs: close over their values instead"
        )


def _keras_paths() -> dict[int, str]:
    """Return the paths of all living Keras variables, by `id` of the variables that they hold.

    Keras names the variables of TensorFlow otherwise, and they do not refer to their owners.
    """
    keras = sys.modules.get("keras")
    if keras is None:
        return {}
    held = (each for each in gc.get_objects() if issubclass(type(each), keras.Variable))
    return {id(each.value): str(each.path) for each in held}


def _structs(program: StableProgram) -> tuple[Any, ...]:
    import jax

    return tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in program.inputs)
