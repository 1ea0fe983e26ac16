"""Convolutions and pools as JAX: shapes and values are those that the graph says."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conv_nets import ConvNet

from tpusim.base import PlanError
from tpusim.export.windows import convolution
from tpusim.graph import Convolution

RUN = Path(__file__).with_name("run_windows.py")


@pytest.mark.thorough
def test_they_compute_what_the_graph_says() -> None:
    answer = subprocess.run([sys.executable, str(RUN)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    for kind in ("sizes", "gradients"):
        assert all(shape == expected for shape, expected in found[kind]), kind
    assert max(found["transposed"]) < 1e-4, "JAX's own transposed convolution"
    assert found["grouped"] == [1, 5, 9, 13], "each output sums the two inputs of its group"
    assert found["depthwise"] == [n * n for n in range(8)], "each channel has its own kernel"
    assert found["maximum"] == [5, 7, 13, 15]
    assert found["mean"] == [2.5, 4.5, 10.5, 12.5]


def test_a_convolution_without_examples_is_refused() -> None:
    net = ConvNet(2, 8, (16, 16))
    net.conv(8, act=False)
    op = net.ops[0]
    assert isinstance(op, Convolution)
    x, y = (tensor.view(tensor.dims[1:]) for tensor in (op.activation, op.output))
    with pytest.raises(PlanError, match="several dimensions of examples or of channels"):
        convolution(replace(op, activation=x, output=y), "x", "k", net.dims)
