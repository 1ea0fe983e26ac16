"""The exchange of sorted experts' rows: a worked example of two devices, whose buffers are full."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import jax
import jax.numpy as jnp
from tpusim.export.jax_library import experts as library

library.INTERPRET = True
sizes = jnp.array([[3, 1, 2, 1], [1, 2, 0, 4]])
rows = jnp.array([[0, 1, 2, 3, 4, 5, 6], [10, 11, 12, 13, 14, 15, 16]])[..., None]


def device(sizes, rows):
    counts, (starts, sent, lands) = library.exchange_plan(sizes, 5, "expert")
    came = library.exchange_rows(rows, 5, starts, sent, lands, "expert")
    order = library.expert_order(counts[:, jax.lax.axis_index("expert")], 5)
    there = library.restore(library.reorder(came, order), order)
    back = library.exchange_rows(there, 7, lands.T, sent.T, starts.T, "expert")
    return counts, came[:, 0], order, back[:, 0]


names = ("counts", "came", "order", "back")
found = jax.vmap(device, axis_name="expert")(sizes, rows)
print(json.dumps({name: each.tolist() for name, each in zip(names, found)}))
"""


@pytest.mark.thorough
def test_rows_go_to_the_devices_of_their_experts_and_back() -> None:
    """Of four experts each device has two, and room for five rows; seven and seven are sent.

    To the first device go 3 and 1 rows of the first, and 1 and 2 of the second, of which the last
    two find no room; to the second 2 and 1, and 0 and 4, of which two do not.
    """
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True, text=True, check=False, env={"JAX_PLATFORMS": "cpu", **_paths()},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert found["counts"] == [[[[3, 1], [2, 1]], [[1, 0], [0, 2]]]] * 2
    assert found["came"] == [[0, 1, 2, 3, 10], [4, 5, 6, 13, 14]]
    assert found["order"] == [[0, 1, 2, 4, 3], [0, 1, 2, 3, 4]]
    assert found["back"] == [[0, 1, 2, 3, 4, 5, 6], [10, 0, 0, 13, 14, 0, 0]]


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
