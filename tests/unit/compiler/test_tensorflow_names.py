"""Layers, passes and lines of TensorFlow's operations, without TensorFlow."""

from types import SimpleNamespace

import pytest

from tpusim.base import Phase
from tpusim.compiler.tf.traced import LayerNames, traced_operations

READS = (
    ("functional_1/block_0_1/norm_1/Cast/ReadVariableOp", "block_0/norm/gamma"),
    ("functional_1/block_0_1/norm_1_2/Cast/ReadVariableOp", "block_0/norm_1/gamma"),
    ("functional_1/block_1_1/mlp_1/up_1/Cast/ReadVariableOp", "block_1/mlp/up/kernel"),
    ("head/MatMul/ReadVariableOp", "head/kernel"),
    ("adam/sub/ReadVariableOp", "beta"),
)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("functional_1/block_0_1/norm_1/add", "block_0/norm/add"),
        ("functional_1/block_0_1/norm_1_2/add", "block_0/norm_1/add"),
        ("gradient_tape/functional_1/block_1_1/mlp_1/up_1/MatMul", "block_1/mlp/up/MatMul"),
        ("functional_1/block_1_1/mlp_1/dropout_1/mul", "block_1/mlp/dropout_1/mul"),
        ("functional_1/block_1_1/add", "block_1/add"),
        ("head/MatMul", "head/MatMul"),
        ("adam/sub", "adam/sub"),
        ("gradient_tape/loss/mul", "loss/mul"),
    ],
)
def test_an_operation_has_the_name_of_the_layer_whose_variables_its_scope_reads(
    operation: str, name: str
) -> None:
    assert LayerNames.of(READS)(operation) == name


SITE = "/venv/lib/python3.11/site-packages"
USER, STEP = ("/home/me/model.py", 7, "call"), ("/home/me/train.py", 20, "train_step")
KERAS = (f"{SITE}/keras/src/layers/core/dense.py", 140, "call")
TAPE = (f"{SITE}/tensorflow/python/eager/backprop.py", 1066, "gradient")
MATMUL = (f"{SITE}/tensorflow/python/ops/math_ops.py", 3000, "matmul")
AGAIN = (f"{SITE}/tensorflow/python/ops/custom_gradient.py", 600, "inner_recompute_grad")
TRACING = (f"{SITE}/tensorflow/python/eager/polymorphic_function/autograph_util.py", 41, "handler")
NOTEBOOK = ("/home/me/run.py", 3, "<module>")


def operation(name: str, *stack: tuple[str, int, str]) -> SimpleNamespace:
    """An operation of a graph; stack: from the function that is traced to the innermost."""
    frames = [
        SimpleNamespace(filename=file, lineno=line, name=function)
        for file, line, function in (NOTEBOOK, TRACING, *stack)
    ]
    return SimpleNamespace(name=name, type="MatMul", inputs=(), traceback=frames)


def test_stacks_tell_the_pass_and_a_gradient_has_the_lines_of_its_operation() -> None:
    inner = SimpleNamespace(
        get_operations=lambda: [operation("while/mlp/MatMul", STEP, MATMUL)], _functions={}
    )
    graph = SimpleNamespace(
        get_operations=lambda: [
            operation("mlp/MatMul", STEP, USER, KERAS, MATMUL),
            operation("gradient_tape/mlp/MatMul/MatMul_1", STEP, TAPE, MATMUL),
            operation("gradient_tape/mlp/AddN", STEP, TAPE),
            operation("mlp/MatMul_1", STEP, TAPE, AGAIN, USER, MATMUL),
            operation("gradient_tape/mlp/MatMul_1/MatMul", STEP, TAPE, AGAIN, TAPE, MATMUL),
            operation("adam/mul", STEP, MATMUL),
        ],
        _functions={"body": SimpleNamespace(graph=inner)},
    )
    made = traced_operations(graph, {})
    lines = {name: [frame.line for frame in each.frames] for name, each in made.items()}
    assert {name: each.phase for name, each in made.items()} == {
        "mlp/MatMul": None,
        "gradient_tape/mlp/MatMul/MatMul_1": Phase.BACKWARD,
        "gradient_tape/mlp/AddN": Phase.BACKWARD,
        "mlp/MatMul_1": Phase.RECOMPUTE,
        "gradient_tape/mlp/MatMul_1/MatMul": Phase.BACKWARD,
        "adam/mul": None,
        "while/mlp/MatMul": None,
    }
    assert lines["mlp/MatMul"] == [140, 7, 20]
    assert lines["gradient_tape/mlp/MatMul/MatMul_1"] == [140, 7, 20]
    assert lines["mlp/MatMul_1"] == [7, 20]
    assert lines["gradient_tape/mlp/MatMul_1/MatMul"] == [7, 20]
    assert lines["adam/mul"] == [20]
