"""Linear attention in chunks is the recurrence, in the matmuls and operations that are costed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tpusim.costs.linear_attention import SOLVED_ROWS, chunk_matmuls, chunk_operations
from tpusim.program import LINEAR_CHUNK, LinearAttentionWork

Array = NDArray[np.float64]
Matmul = Callable[[Array, Array], Array]

KEYS, VALUES, TOKENS = 24, 40, 2 * LINEAR_CHUNK
DELTA = LinearAttentionWork(1, 1, TOKENS, KEYS, VALUES, "bf16", "head", True, False, 0, 0)
KINDS = {
    "gated-delta": DELTA,
    "kimi-delta": replace(DELTA, decay="channel"),
    "lightning": replace(DELTA, decay="", delta=False),
}


def inputs(work: LinearAttentionWork) -> tuple[Array, ...]:
    """Queries, keys, values, logarithms of decays and strengths of all tokens of one head."""
    random = np.random.default_rng(7)
    q, k = (random.normal(size=(TOKENS, KEYS)) / KEYS**0.5 for _ in "qk")
    v = random.normal(size=(TOKENS, VALUES))
    decays = {"head": (TOKENS, 1), "channel": (TOKENS, KEYS), "": (1, 1)}[work.decay]
    decay = -random.uniform(0, 0.2, size=decays) * np.ones((TOKENS, KEYS))
    return q, k, v, decay, random.uniform(0, 1, size=(TOKENS, 1))


def recurrence(work: LinearAttentionWork) -> Array:
    """The outputs, token by token (arXiv:2412.06464, equation 10; arXiv:2510.26692, equation 1)."""
    state, outputs = np.zeros((KEYS, VALUES)), []
    for q, k, v, decay, strength in zip(*inputs(work), strict=True):
        state = np.exp(decay)[:, None] * state
        new = strength * (v - state.T @ k) if work.delta else v
        state = state + np.outer(k, new)
        outputs.append(state.T @ q)
    return np.array(outputs)


def solved(lower: Array, right: Array, matmul: Matmul) -> tuple[Array, int]:
    """The solution of a unit lower triangular system, and the operations besides the matmuls."""
    x, operations = right.copy(), 0
    for start in range(0, len(x), SOLVED_ROWS):
        end = start + SOLVED_ROWS
        for row in range(start + 1, end):
            x[row] -= lower[row, start:row] @ x[start:row]
            operations += 2 * (row - start) * x.shape[1]
        if end < len(x):
            x[end:] -= matmul(lower[end:, start:end], x[start:end])
    return x, operations


def chunked(work: LinearAttentionWork, matmul: Matmul) -> tuple[Array, int]:
    """The outputs, chunk by chunk, and the vector operations of the triangular system of one."""
    state, outputs, operations = np.zeros((KEYS, VALUES)), [], 0
    chunks = [np.split(each, TOKENS // LINEAR_CHUNK) for each in inputs(work)]
    for q, k, v, decay, strength in zip(*chunks, strict=True):
        total = np.cumsum(decay, axis=0)
        apart = np.tril(np.ones((LINEAR_CHUNK, LINEAR_CHUNK)))[..., None] * np.exp(
            np.minimum(total[:, None] - total[None], 0)
        )

        def pairs(of: Array, k: Array = k, apart: Array = apart) -> Array:
            if work.decay == "channel":
                return np.einsum("ik,jk,ijk->ij", of, k, apart)
            return matmul(of, k.T) * apart[..., 0]

        scores, new = pairs(q), v
        if work.delta:
            lower = np.tril(pairs(k) * strength, -1)
            sides = [strength * v, strength * k * np.exp(total)]
            sides += [np.eye(LINEAR_CHUNK)] if work.decay == "channel" else []
            found, operations = solved(lower, np.concatenate(sides, axis=1), matmul)
            new = found[:, :VALUES] - matmul(found[:, VALUES : VALUES + KEYS], state)
        outputs.append(matmul(q * np.exp(total), state) + matmul(scores, new))
        state = np.exp(total[-1])[:, None] * state
        state = state + matmul((k * np.exp(total[-1] - total)).T, new)
    return np.concatenate(outputs), operations


@pytest.mark.parametrize("work", KINDS.values(), ids=KINDS)
def test_a_chunk_is_the_recurrence_in_the_matmuls_that_are_costed(
    work: LinearAttentionWork,
) -> None:
    shapes: list[tuple[int, int, int]] = []

    def matmul(left: Array, right: Array) -> Array:
        shapes.append((*left.shape, right.shape[1]))
        return left @ right

    outputs, _ = chunked(work, matmul)
    assert outputs == pytest.approx(recurrence(work), rel=1e-9, abs=1e-12)
    assert sorted(shapes) == sorted([*chunk_matmuls(work)] * (TOKENS // LINEAR_CHUNK))


@pytest.mark.parametrize("kind", ["gated-delta", "kimi-delta"])
def test_the_triangular_system_takes_the_operations_that_are_costed(kind: str) -> None:
    work = KINDS[kind]
    _, operations = chunked(work, np.matmul)
    without = chunk_operations(replace(work, delta=False))
    tokens, pairs = LINEAR_CHUNK * (10 * KEYS + 2 * VALUES), 3 * LINEAR_CHUNK**2
    assert chunk_operations(work) - without == operations + tokens + pairs


def test_the_products_of_a_token_are_those_of_the_closed_form() -> None:
    """Chunks of C: 6 d d_v, and 2 C (2 d + d_v) and the triangular system besides."""
    system = sum(2 * rows * 16 * (KEYS + VALUES) for rows in (48, 32, 16))
    whole = sum(2 * m * k * n for m, k, n in chunk_matmuls(DELTA))
    token = 6 * KEYS * VALUES + 2 * LINEAR_CHUNK * (2 * KEYS + VALUES)
    assert whole == LINEAR_CHUNK * token + system
