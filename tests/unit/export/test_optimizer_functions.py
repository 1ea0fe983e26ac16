"""Muon of exported steps: Newton-Schulz against singular values, and Adam against optax."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from tpusim.export.jax_library import muon as library

library.shard = lambda x, spec: x
update = jax.random.normal(jax.random.key(0), (2, 24, 4, 4))
found = {}
for name, shape in (("wide", (2, 24, 16)), ("tall", (2, 16, 24))):
    made = library.orthogonal(update, shape, (P(),)).reshape(shape) / (0.2 * 24**0.5)
    left, _, right = np.linalg.svd(np.asarray(update.reshape(shape)), full_matrices=False)
    cores = np.einsum("lmr,lmn,lsn->lrs", left, np.asarray(made), right)
    found[name] = [
        float(np.diagonal(cores, axis1=1, axis2=2).min()),
        float(np.diagonal(cores, axis1=1, axis2=2).max()),
        float(np.abs(cores * (1 - np.eye(16))).max()),
    ]

library.MATRICES = {"layers": {"w": (2, 3, 5)}}
library.MATRIX_SPECS = {"layers": {"w": (P(),)}}
layers = {"w": jnp.ones((2, 3, 5)), "scale": jnp.ones((2, 3))}
weights = {"head": jnp.ones((3, 5)), "layers": layers}
ours, theirs = library.scale_by_muon(jnp.float32, jnp.float32), optax.scale_by_adam(b2=0.95)
state, other = ours.init(weights), theirs.init(weights)
for step in range(3):
    grads = jax.tree.map(lambda w: jax.random.normal(jax.random.key(step), w.shape), weights)
    updates, state = ours.update(grads, state)
    adam, other = theirs.update(grads, other)
found["adam"] = max(
    float(jnp.abs(updates["head"] - adam["head"]).max()),
    float(jnp.abs(updates["layers"]["scale"] - adam["layers"]["scale"]).max()),
)
found["second"] = {
    "head": state.nu["head"].shape, "w": state.nu["layers"]["w"].shape,
    "momentum": state.mu["layers"]["w"].shape,
}
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_updates_of_matrices_are_nearly_orthogonal_and_all_others_are_adams() -> None:
    """The singular vectors stay, and the singular values of 0.1 and more come to 0.7 to 1.2."""
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True, text=True, check=False, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    for name in ("wide", "tall"):
        least, most, apart = found[name]
        assert 0.65 < least < most < 1.25
        assert apart < 1e-3
    assert found["adam"] < 1e-5
    assert found["second"] == {"head": [3, 5], "w": [], "momentum": [2, 3, 5]}
