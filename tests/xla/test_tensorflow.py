"""Steps of TensorFlow and Keras, compiled for TPUs and replayed."""

import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tpusim as ts
from tpusim.base import CompileError, Phase
from tpusim.results import operations_by_name

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
    pytest.mark.skipif(
        find_spec("tensorflow") is None, reason="needs pip install 'tpusim[tensorflow]'"
    ),
]

BATCH, WIDTH, HIDDEN = 256, 512, 1024
MATMUL = 2.0 * BATCH * WIDTH * HIDDEN


def linear_step() -> tuple[Any, Any]:
    """A matmul with its weight's gradient, annotated for 4 x 4 devices, and a 64-bit counter."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    mesh = np.arange(16).reshape(4, 4)
    weight = tf.Variable(tf.zeros((WIDTH, HIDDEN)), name="weight")
    count = tf.Variable(0, dtype=tf.int64, name="count")
    shift = tf.constant(np.arange(WIDTH), tf.float32)

    @tf.function(jit_compile=True)
    def linear(x: Any) -> Any:
        with tf.GradientTape() as tape:
            x = xla_sharding.mesh_split(x + shift, mesh, [0, -1], use_sharding_op=True)
            split = xla_sharding.mesh_split(
                tf.identity(weight), mesh, [-1, 1], use_sharding_op=True
            )
            with tf.name_scope("mlp"):
                loss = tf.reduce_mean(tf.square(x @ split))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(2**40)
        return {"loss": loss, "count": count.read_value()}

    return linear, tf.TensorSpec((BATCH, WIDTH), tf.float32)


@pytest.fixture(scope="module")
def linear() -> SimpleNamespace:
    function, spec = linear_step()
    step = ts.xla.tensorflow(function, spec)
    compiled = ts.xla.compile(
        step, *step.inputs, slice="v5e:4x4", mesh={"data": 4, "model": 4},
        donate=step.donate, cache=False,
    )  # fmt: skip
    return SimpleNamespace(step=step, compiled=compiled, result=ts.simulate(compiled))


def test_inputs_are_arguments_and_then_what_is_captured(linear: SimpleNamespace) -> None:
    step = linear.step
    shapes = [each.shape for each in step.inputs]
    assert shapes == [(BATCH, WIDTH), *(each.shape for each in step.variables)]
    by_name = {each.name: each.shape for each in step.variables}
    assert (by_name["weight"], by_name["count"], len(by_name)) == ((WIDTH, HIDDEN), (), 3)
    written = {each.name: each.written for each in step.variables}
    assert {name: written[name] for name in ("weight", "count")} == {"weight": True, "count": True}
    assert sum(written.values()) == len(step.donate) == 2
    assert step.model_flops == linear.compiled.model_flops == 2 * MATMUL


def test_a_counter_of_64_bits_stays_one(linear: SimpleNamespace) -> None:
    names = {each.name: each.dtype for each in linear.step.variables}
    assert names["count"] == "int64"
    entry = re.search(r"^ENTRY.*", linear.compiled.hlo, re.M)
    assert entry is not None
    assert entry[0].count("s64[]") == 3  # in, and out twice: as a result and as the variable


def test_sharding_annotations_hold(linear: SimpleNamespace) -> None:
    """Each device multiplies a sixteenth, and holds a quarter of the weight and of the batch."""
    executed = float(linear.result.flops.total)
    assert executed == pytest.approx(2 * MATMUL, rel=1e-3)
    quarters = (WIDTH * HIDDEN + BATCH * WIDTH) * 4 / 4
    assert linear.compiled.memory.arguments == pytest.approx(quarters, rel=0.02)


def test_annotations_for_another_number_of_devices_are_refused(linear: SimpleNamespace) -> None:
    with pytest.raises(CompileError, match="annotations are for 16 devices, and the mesh has 4"):
        ts.xla.compile(linear.step, *linear.step.inputs, slice="v5e:2x2", mesh={"data": 4})


def test_passes_lines_and_names_are_the_users(linear: SimpleNamespace) -> None:
    result = linear.result
    phases = {
        row.place: set(row.phases_s) for row in ts.explain_lines(result).rows if row.seconds > 1e-7
    }
    source = Path(__file__).read_text("utf-8").splitlines()
    matmul = next(at for at, line in enumerate(source, 1) if "tf.square(x @ split)" in line)
    update = next(at for at, line in enumerate(source, 1) if "weight.assign_sub(" in line)
    assert phases[f"test_tensorflow.py:{matmul}"] >= {Phase.FORWARD, Phase.BACKWARD}
    assert Phase.OPTIMIZER not in phases[f"test_tensorflow.py:{matmul}"]
    assert phases[f"test_tensorflow.py:{update}"] == {Phase.OPTIMIZER}
    assert not any(place.startswith("step.py") for place in phases)
    assert sum(each.picoseconds for each in result.unknown) < 0.005 * result.timeline.total_ps


@pytest.fixture(scope="module")
def keras_step() -> ts.xla.TensorFlowStep:
    """A Keras layer under `tf.recompute_grad`, and its optimizer."""
    import keras
    import tensorflow as tf

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="block")
            self.norm = keras.layers.LayerNormalization(name="norm")
            self.up = keras.layers.Dense(512, activation="relu", name="up")
            self.down = keras.layers.Dense(128, name="down")

        def build(self, shape: Any) -> None:
            self.norm.build(shape)
            self.up.build(shape)
            self.down.build((*shape[:-1], 512))

        def call(self, x: Any) -> Any:
            return x + self.down(self.up(self.norm(x)))

    inputs = keras.Input((128,))
    model = keras.Model(inputs, Block()(inputs), name="model")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.recompute_grad(model)(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return ts.xla.tensorflow(train, tf.TensorSpec((64, 128), tf.float32))


def test_what_is_recomputed_is_no_flops_of_the_model(keras_step: ts.xla.TensorFlowStep) -> None:
    """Two matmuls forward and four backward: `tf.recompute_grad` has the input's gradient too."""
    assert keras_step.model_flops == 6 * 2.0 * 64 * 128 * 512


def test_keras_variables_have_their_paths(keras_step: ts.xla.TensorFlowStep) -> None:
    names = {each.name: each.written for each in keras_step.variables}
    assert names["block/up/kernel"]
    assert names["block/norm/gamma"]
    assert not names.get("SGD/learning_rate", False)


def test_a_replay_has_keras_names_and_all_four_passes(keras_step: ts.xla.TensorFlowStep) -> None:
    compiled = ts.xla.compile(
        keras_step, *keras_step.inputs, slice="v6e:1x1", donate=keras_step.donate, cache=False
    )
    result = ts.simulate(compiled)
    operations = operations_by_name(result.program_of(0)).values()
    named = {op.scope for op in operations}
    assert any(scope.startswith("block/up/MatMul") for scope in named)
    assert not any("block_1" in scope or "call_exported" in scope for scope in named)
    assert {op.phase for op in operations} == {
        Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER,
    }  # fmt: skip


def test_what_is_no_compiled_function_is_refused() -> None:
    import tensorflow as tf

    spec = tf.TensorSpec((4,), tf.float32)
    with pytest.raises(CompileError, match=r"give a function that tf\.function"):
        ts.xla.tensorflow(lambda x: x, spec)
    with pytest.raises(CompileError, match=r"write tf\.function\(jit_compile=True\)"):
        ts.xla.tensorflow(tf.function(lambda x: x), spec)
    with pytest.raises(CompileError, match="cannot compile it with XLA"):
        ts.xla.tensorflow(
            tf.function(tf.strings.length, jit_compile=True), tf.TensorSpec((), tf.string)
        )
