"""JAX of encoders: functions against their definitions, and gradients on eight devices."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tpusim as ts
from tpusim.export.jax_library import encoders as library
from tpusim.models import Bert, Conformer, MlpMixer, TextTower, TwoTowers, VisionTransformer


def test_relative_shift_takes_the_score_of_each_distance() -> None:
    """Key j of query i is at distance j - i, which is the column n - 1 + j - i."""
    scores = jnp.arange(4 * 7.0).reshape(1, 1, 4, 7)
    shifted = library.relative_shift(scores)
    for i in range(4):
        for j in range(4):
            assert shifted[0, 0, i, j] == scores[0, 0, i, 3 + j - i]


@pytest.mark.thorough
def test_losses_of_pairs() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)
    rows, columns = (library.own_cross_entropy(logits, axis) for axis in (1, 0))
    for one in range(5):
        by_row = float(-jax.nn.log_softmax(logits[one])[one])
        assert float(rows[one]) == pytest.approx(by_row, rel=1e-5)
        by_column = float(-jax.nn.log_softmax(logits[:, one])[one])
        assert float(columns[one]) == pytest.approx(by_column, rel=1e-5)
    zero = jnp.zeros(1)
    sign = 2 * np.eye(5) - 1
    by_hand = np.log1p(np.exp(-sign * np.asarray(logits))).sum(1)
    assert np.allclose(library.own_sigmoid(logits, zero, zero), by_hand, rtol=1e-5)


def test_rows_scale_and_a_vector_fills() -> None:
    """The second row of each example is added to 1; the vector follows the tokens given."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)
    rows = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6)), jnp.float32)
    scaled = library.scaled(x, rows, 1)
    filled = library.filled(x, rows[0, :3], 4)
    for example in range(2):
        for token in range(5):
            by_hand = x[example, token] * (1 + rows[example, 3:])
            assert np.allclose(scaled[example, token], by_hand)
            kept = rows[0, :3] if token == 4 else x[example, token]
            assert np.allclose(filled[example, token], kept)


def test_a_frozen_tower_has_no_state_and_keeps_its_weights() -> None:
    source = ts.export_jax(
        TwoTowers(image=VisionTransformer(**IMAGE), text=TEXT, shared=32, frozen="image"),
        ts.Plan(mesh={"data": 1}, global_batch=8),
        ts.Slice("v5e", "1x1"),
    )
    space: dict[str, object] = {"__name__": "step"}
    exec(compile(source, "step.py", "exec"), space)
    assert "image/layers" in space["FROZEN"]
    assert not [name for name in space["FROZEN"] if not name.startswith("image")]
    _, moments = jax.eval_shape(lambda: space["init"](jax.random.key(0)))
    owners = {str(path) for path, _ in jax.tree_util.tree_leaves_with_path(moments)}
    assert any("text_embedding" in path for path in owners)
    assert not any("image" in path for path in owners)
    weights = {name: {"w": jnp.ones(2)} for name in (*space["FROZEN"], "text/layers")}
    own = space["trained"](weights)
    assert own.keys() == {"text/layers"}
    moved = space["merged"](jax.tree.map(jnp.zeros_like, own), weights)
    assert {name for name, w in moved.items() if not w["w"].any()} == {"text/layers"}


def test_tokens_and_positions() -> None:
    x, token = jnp.ones((2, 3, 4)), jnp.zeros(4)
    longer = library.after_token(x, token)
    assert longer.shape == (2, 4, 4)
    assert float(library.position(longer).sum()) == 0
    assert float(library.position(longer, -1).sum()) == 8


def test_rows_of_examples_are_of_their_own_example() -> None:
    x, ids = jnp.arange(2 * 4 * 3).reshape(2, 4, 3), jnp.asarray([[3, 0], [1, 1]])
    rows = library.rows_of_examples(x, ids)
    assert np.array_equal(rows, np.stack([x[0, [3, 0]], x[1, [1, 1]]]))
    assert np.array_equal(library.first_rows(x[0], 2), x[0, :2])
    assert np.array_equal(library.one_hot_rows(ids[1], jnp.int32, 3), [[0, 1, 0], [0, 1, 0]])
    assert np.array_equal(library.mean_of_example(x[:, :, 0]), [4.5, 16.5])


TEXT = TextTower(layers=2, embed=96, mlp=192, heads=4, vocab=256, length=8, causal=True)
IMAGE = {"layers": 2, "embed": 64, "mlp": 256, "heads": 4, "patch": 8, "image": 32, "classes": 16}
SPEECH = {"layers": 2, "embed": 64, "heads": 4, "kernel": 4, "frames": 64, "mel": 16, "codes": 32}
MODELS = {
    "class token": VisionTransformer(**IMAGE, pre_norm=True),
    "probe": VisionTransformer(**IMAGE, pool="probe", representation=True),
    "parallel": VisionTransformer(
        **IMAGE, pool="mean", parallel=True, qk_norm=True, rms=True, qkv_bias=False
    ),
    "not scanned": VisionTransformer(**IMAGE, scanned=False),
    "mixer": MlpMixer(layers=2, embed=64, token_mlp=32, mlp=256, patch=8, image=32, classes=16),
    "softmax of pairs": TwoTowers(image=VisionTransformer(**IMAGE), text=TEXT, shared=32),
    "sigmoid of pairs": TwoTowers(
        image=VisionTransformer(**IMAGE, pool="probe"), text=TEXT, shared=32, loss="sigmoid"
    ),
    "distances": Conformer(**SPEECH, relative=True),
    "speech": Conformer(**SPEECH),
    "some positions": Bert(layers=2, embed=64, mlp=256, heads=4, vocab=256, predictions=3),
    "all positions": Bert(layers=2, embed=64, mlp=256, heads=4, vocab=256, next_sentence=False),
}
WITHOUT_GRADIENT = ("wk_bias']", "depthwise_bias']", "token_wo_bias']")
"""Ends of the names of weights that move no loss: what reads them takes out what they add. A bias
of the keys adds the same to all scores of a query; one before a batch norm, the same to all that it
compares; and one of patches, alike for all channels, the same to all channels of each later norm of
a residual stream that is only read through norms."""

LEFT_OUT = "depthwise']"
"""End of the names of weights whose gradients are not compared: XLA's partitioner for CPUs makes
twice the gradient of a depthwise kernel on a mesh of two axes, of a lone `conv_general_dilated` too
(jax 0.10.2), so that is no check of the exported step."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_exported_gradients_are_those_of_one_device(name: str, tmp_path: Path) -> None:
    """The check of the exported steps of transformers, `run_exported.py`, for these models.

    Gradients that are zero are rounding errors, of which no two programs have the same: they are
    not compared, but have to be as small.
    """
    given = MODELS[name]
    f32 = {"dtype": "f32", "grad_dtype": "f32", "param_dtype": "f32"}
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}
    length = {"seq_len": 16} if given.reads_text else {}
    sharded = ts.Plan(mesh=mesh, global_batch=8, remat="minimal", **length, **f32)
    files = [tmp_path / "sharded.py", tmp_path / "whole.py"]
    for file, plan, pod in zip(
        files, (sharded, sharded.replace(mesh={"data": 1})), ("2x4", "1x1"), strict=True
    ):
        file.write_text(ts.export_jax(given, plan, ts.Slice("v5e", pod)))
    script = str(Path(__file__).with_name("run_exported.py"))
    answer = subprocess.run(
        [sys.executable, script, *map(str, files)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert found["weights"] == given.parameter_count
    assert found["loss_difference"] < 1e-5
    size = found["gradient_sizes"]
    zero = {name for name in size if name.endswith(WITHOUT_GRADIENT)}
    assert max((size[name] for name in zero), default=0) < 1e-5
    apart = found["gradient_differences"].items()
    compared = {n: value for n, value in apart if n not in zero and not n.endswith(LEFT_OUT)}
    assert max(compared.values()) < 1e-4
    assert found["losses"][-1] < found["losses"][0]
