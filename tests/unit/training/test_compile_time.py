"""What the compile time of a step follows from."""

import pytest

import tpusim as ts
from tpusim.hardware import load_chip
from tpusim.training import compile_seconds, program_size
from tpusim.training.compile_time import (
    DECADE_S,
    FIXED_S,
    OPERATION_S,
    ProgramSize,
    seconds_of_size,
)

MODEL = ts.models.Transformer(layers=4, embed=1024, mlp=4096, heads=8, vocab=32000)


def step(pod: str = "v4:2x2x1", layers: int = 4, **keys: object) -> ts.PlanResult:
    given = {"mesh": {"data": 4}, "seq_len": 1024, "global_batch": 32} | keys
    return ts.simulate(MODEL.replace(layers=layers), ts.Plan(**given), pod)


def size(result: ts.PlanResult) -> ProgramSize:
    return program_size(result.programs, scanned=result.plan.remat.scan_layers)


def test_a_scan_is_compiled_once_however_long_it_is() -> None:
    assert size(step(layers=4)) == size(step(layers=32))


def test_layers_without_a_loop_are_compiled_each_and_their_shapes_once() -> None:
    few, more, most = (
        size(step(layers=layers, scan_layers=False, remat="none")) for layers in (4, 8, 12)
    )
    assert most.operations - more.operations == more.operations - few.operations > 0
    assert few.decades == more.decades == most.decades


def test_microbatches_are_a_loop_either_way() -> None:
    keys = {"scan_layers": False, "remat": "none"}
    assert size(step(microbatches=2, **keys)).operations == pytest.approx(
        size(step(microbatches=4, **keys)).operations
    )


def test_each_shape_counts_the_decades_of_its_flops() -> None:
    """Nine: Q, K, V and O have one, up and down projection and head one each; and the gradients of
    their weights, where the input's gradient of one has the shape of another."""
    small, large = (size(step(global_batch=batch)) for batch in (32, 320))
    assert small.operations == large.operations
    assert large.decades - small.decades == pytest.approx(9)


def test_seconds_are_the_sum_of_the_parts() -> None:
    assert seconds_of_size(ProgramSize(0, 0.0), load_chip("v4")) == FIXED_S
    found = seconds_of_size(ProgramSize(100, 10.0), load_chip("v6e"))
    assert found == pytest.approx(2.09 * (FIXED_S + 100 * OPERATION_S + 10 * DECADE_S))
    assert compile_seconds(step("v5e:2x2")) == pytest.approx(
        1.49 * compile_seconds(step("v4:2x2x1")), rel=0.1
    )
