"""Kernels by what their bodies do: real ones against closed forms, small ones by hand, broken ones.

The real ones are those of tests/data/hlo/kernels, of M, K, N = 2048, 1024, 512 in blocks of 256.
"""

import base64
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import pytest
from compiler_parts import HloParser, encoded_body, read_module
from kernel_bodies import (
    ADD,
    GRID,
    KERNELS,
    MATMUL,
    ONE,
    branches,
    by_hand,
    kernel_of,
    loop,
    text_of,
    with_body,
    work_of,
)

from tpusim.compiler import load
from tpusim.compiler.hlo import read as reading
from tpusim.program import MatmulWork, VectorWork

pytest.importorskip("jaxlib.xla_client")

FILES = json.loads((KERNELS / "manifest.json").read_text("utf-8"))["files"]
M, K, N, BLOCK = 2048, 1024, 512, 256


@pytest.fixture(scope="module")
def parser() -> Iterator[HloParser]:
    with HloParser() as found:
        yield found


def test_the_manifest_names_all_kernels() -> None:
    assert sorted(FILES) == sorted(file.name for file in KERNELS.glob("*.hlo.gz"))


@pytest.mark.parametrize(
    ("file", "products", "k", "n", "dtype"),
    [
        ("tiled_v5e", 8 * 2 * 4, BLOCK, BLOCK, "bf16"),
        ("int8_v6e", 8 * 2 * 4, BLOCK, BLOCK, "int8"),
        ("looped_v6e", 8 * 8, 128, N, "bf16"),
        ("dynamic_v5e", 8, 128, N, "bf16"),
    ],
)
def test_products_are_those_of_the_blocks(
    file: str, products: int, k: int, n: int, dtype: str, parser: HloParser
) -> None:
    found = work_of(text_of(file), parser)
    assert isinstance(found.model, MatmulWork)
    assert (found.model.batch, found.model.m, found.model.k, found.model.n) == (
        products, BLOCK, k, n,
    )  # fmt: skip
    assert found.model.dtype == dtype
    assert found.flops == products * 2 * BLOCK * k * n
    assert found.flops == (2 * M * K * N if file != "dynamic_v5e" else 2 * M * 128 * N)
    assert found.flops == FILES[f"{file}.hlo.gz"]["model_flops"], "as JAX's own trace has it"
    assert found.understood
    assert ("counted once" in found.note) is (file == "dynamic_v5e")


def test_blocks_cross_hbm_each_time_that_they_are_taken(parser: HloParser) -> None:
    """In the order of the grid, M by N by K: X once for each of two columns, Y for eight rows."""
    found = work_of(text_of("tiled_v5e"), parser)
    assert found.read_bytes == 2 * (2 * M * K + 8 * K * N)
    assert found.write_bytes == 2 * M * N
    found = work_of(text_of("looped_v6e"), parser)
    assert (found.read_bytes, found.write_bytes) == (2 * (M * K + K * N), 4 * M * N)


PLACE = """
"stable_mosaic.func.func"() ({
^bb0(%i: i32, %j: i32, %table: memref<4xi32>):
  %c = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
  %at = "stable_mosaic.arith.index_cast"(%i) : (i32) -> index
  %given = "stable_mosaic.memref.load"(%table, %at) : (memref<4xi32>, index) -> i32
  "stable_mosaic.func.return"(WHERE) : (i32, i32) -> ()
}) {sym_name = "place"} : () -> ()
"""


@pytest.mark.parametrize(
    ("where", "grid", "blocks"),
    [
        ("%c, %c", (4, 3), 1),
        ("%i, %c", (4, 3), 4),
        ("%c, %j", (4, 3), 12),
        ("%j, %i", (4, 3), 12),
        ("%i, %j", (4, 1), 4),
        ("%given, %c", (4, 3), 4),
    ],
)
def test_a_block_is_taken_as_often_as_its_place_turns(
    where: str, grid: tuple[int, int], blocks: int, parser: HloParser
) -> None:
    window = "{transform_indices = @place, window_bounds = array<i64: 8, 128>}"
    bounds = f", iteration_bounds = array<i64: {grid[0]}, {grid[1]}>"
    body = by_hand(ADD, f"{bounds}, window_params = [{window}, {{}}]")
    found = parser.parse_kernel(
        base64.b64encode(body + PLACE.replace("WHERE", where).encode()).decode(), 9
    )
    assert found is not None
    assert found["moved"] == [blocks * 8 * 128, None]


SIZED = "(vector<256x512xf32>, vector<256x512xf32>) -> vector<256x512xf32>"


def test_a_product_and_the_sum_that_it_is_added_to_are_one(parser: HloParser) -> None:
    inside = f'%p = {MATMUL}\n%s = "stable_mosaic.arith.addf"(%o, %p) : {SIZED}\n'
    more = '%t = "stable_mosaic.arith.addf"(%s, %o) : ' + SIZED
    once, twice = (
        work_of(with_body(text_of("tiled_v5e"), by_hand(each)), parser)
        for each in (inside, inside + more)
    )
    assert (once.model.epilogue_flops, twice.model.epilogue_flops) == (0, 256 * 512)


def test_a_kernel_without_products_is_vector_work(parser: HloParser) -> None:
    """A maximum, a difference, an exponential of 6, a sum and a quotient of 2 an element."""
    found = work_of(text_of("softmax_v5e"), parser)
    operations = (1 + 1 + 6 + 1 + 2) * M * K
    assert found.model == VectorWork(4 * M * K, 4 * M * K, operations, compiled=True)
    assert found.flops == 0
    assert found.understood


def test_xla_s_own_kernel_is_read_from_its_text(parser: HloParser) -> None:
    """`online-softmax` of 8 heads: 1024 queries x 1024 keys, times values of 128."""
    found = work_of(text_of("online_v5e"), parser)
    assert isinstance(found.model, MatmulWork)
    products = (found.model.batch, found.model.m, found.model.k, found.model.n)
    assert products == (8, 1024, 1024, 128)
    assert found.flops == FILES["online_v5e.hlo.gz"]["model_flops"] == 2 * 8 * 1024 * 1024 * 128
    scores, values = 2 * 8 * 1024 * 1024, 2 * 8 * 1024 * 128
    assert (found.read_bytes, found.write_bytes) == (scores + values, values)
    least = (1 + 1 + 6 + 1) * 8 * 1024 * 1024
    assert least < found.model.epilogue_flops < 1.1 * least, "maximum, difference, exp, sum"
    assert found.understood


def test_a_replay_knows_all_of_it() -> None:
    import tpusim as ts

    found = ts.simulate(load(KERNELS / "tiled_v5e.hlo.gz"))
    assert not found.unknown
    assert float(found.flops.total) == 2 * M * K * N


SUM = '%s = "stable_mosaic.arith.addi"(%c10, %c3) : (i32, i32) -> i32\n'
PART = '%s = "stable_mosaic.arith.muli"(%i, %c3) : (i32, i32) -> i32\n'
SIDES = "transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false"
UNSTABLE = MATMUL.replace("stable_mosaic.", "").replace("{}", f"{{{SIDES}}}")
MAPS = (
    "indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, "
    "affine_map<(m, n, k) -> (m, n)>]"
)
CONTRACT = MATMUL.replace("tpu.matmul", "vector.contract").replace("{}", f"{{{MAPS}}}")
INNER = loop("%c0", "%c3", "%c1", MATMUL).replace("%at", "%in")


@pytest.mark.parametrize(
    ("inside", "attributes", "products", "once"),
    [
        (MATMUL, "", 1, False),
        (UNSTABLE, "", 1, False),
        (CONTRACT, "", 1, False),
        (MATMUL, GRID, 12, False),
        (MATMUL, GRID.replace(" 4", f" {-(2**63)}"), 3, True),
        (loop("%c0", "%c10", "%c3", MATMUL), GRID, 12 * 4, False),
        (SUM + loop("%c1", "%s", "%c3", MATMUL), "", 4, False),
        (loop("%c10", "%c0", "%c3", MATMUL), "", 0, False),
        (loop("%c0", "%c10", "%c1", INNER), "", 30, False),
        (loop("%c0", "%i", "%c1", MATMUL), "", 1, True),
        (PART + loop("%c0", "%s", "%c3", MATMUL) + loop("%s", "%i", "%c1", MATMUL), "", 1, True),
        (branches(MATMUL, ADD), "", 1, False),
        (branches(ADD, f"{MATMUL} {MATMUL}"), GRID, 24, False),
        (branches(MATMUL, "") + branches(MATMUL, ""), "", 2, False),
    ],
)
def test_the_grid_and_loops_multiply_and_of_branches_the_costlier_counts(
    inside: str, attributes: str, products: int, once: bool, parser: HloParser
) -> None:
    found = work_of(with_body(text_of("tiled_v5e"), by_hand(inside, attributes)), parser)
    assert found.understood
    assert found.flops == products * ONE
    assert ("counted once" in found.note) is once


@pytest.mark.parametrize(
    "body",
    [
        by_hand('"stable_mosaic.func.call"() {callee = @other} : () -> ()'),
        by_hand('"stable_mosaic.tpu.matmul_push_rhs"(%r) : (vector<128x512xbf16>) -> ()'),
        by_hand(
            '"stable_mosaic.tpu.enqueue_dma"(%l, %i, %r, %i, %i) {operandSegmentSizes = '
            "array<i32: 1, 1, 1, 1, 1, 0, 0>} : (vector<256x128xbf16>, i32, vector<128x512xbf16>, "
            "i32, i32) -> ()"
        ),
        by_hand(MATMUL, ", tpu.core_type = #tpu.core_type<sc_scalar_subcore>"),
        by_hand(MATMUL, f", iteration_bounds = array<i64: {2**62}, {2**62}>"),
        b"module {}",
        b"",
        b"ML\xefR\x01MLIR99.0.0git\x00",
    ],
)  # fmt: skip
def test_a_body_that_is_not_understood_is_a_kernel_of_unknown_work(
    body: bytes, parser: HloParser
) -> None:
    found = work_of(with_body(text_of("tiled_v5e"), body), parser)
    assert not found.understood
    assert found.note == "kernel of unknown work"
    assert found.model == VectorWork(2 * (M * K + K * N), 2 * M * N, 0)


def test_an_author_s_estimate_holds_whatever_the_body_says(parser: HloParser) -> None:
    estimate = '"cost_estimate":{"flops":"2000000000000"},"body":'
    found = work_of(text_of("tiled_v5e").replace('"body":', estimate), parser)
    assert found.flops == 2e12


def test_bodies_are_read_no_longer_than_is_allowed(
    parser: HloParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ALL_KERNELS_SECONDS", 0.0)
    assert not work_of(text_of("tiled_v5e"), parser).understood


def test_each_body_is_read_once(parser: HloParser, monkeypatch: pytest.MonkeyPatch) -> None:
    module = read_module(text_of("tiled_v5e").encode(), "kernel", parser)
    asked: list[str] = []
    monkeypatch.setattr(HloParser, "parse_kernel", lambda self, body, seconds: asked.append(body))
    call = kernel_of(module)
    twice = replace(module.main, instructions=(call, replace(call, name="again")))
    assert reading.read_kernel_bodies([twice, module.main], parser) == {}
    assert asked == [encoded_body(call)]


def broken(body: bytes, draw: random.Random) -> bytes:
    kind, at = draw.randrange(4), draw.randrange(len(body))
    if kind == 0:
        return body[:at]
    if kind == 1:
        return draw.randbytes(draw.randrange(1, 400))
    changed = bytearray(body)
    for _ in range(draw.choice((1, 1, 3, 20))):
        changed[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return bytes(changed) if kind == 2 else body[:at] + draw.randbytes(8) + body[at:]


def test_broken_bodies_never_crash_or_hang(parser: HloParser) -> None:
    """Each is of known work or of unknown work; what kills the child does not end the reading."""
    sources = [
        base64.b64decode(json.loads(re.search(r'"body":("[^"]*")', text_of(file))[1]))  # type: ignore[index]
        for file in ("tiled_v5e", "softmax_v5e", "looped_v6e")
    ]
    draw, found, longest = random.Random(8), Counter[bool](), 0.0
    for _ in range(BROKEN):
        body = base64.b64encode(broken(draw.choice(sources), draw)).decode()
        body = body[: draw.choice((None, None, None, draw.randrange(len(body) + 1)))]
        began = monotonic()
        answer = parser.parse_kernel(body, LIMIT)
        longest = max(longest, monotonic() - began)
        found[answer is not None] += 1
        assert answer is None or set(answer) == {"matmuls", "operations", "once", "moved"}
    assert min(found[True], found[False]) > BROKEN / 50
    assert longest < LIMIT + 2, "one of them in 3,000 would go on for ever"


BROKEN, LIMIT = 400, 3.0
