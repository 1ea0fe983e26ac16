"""Work that only compiled programs have: what the compiler estimates, and several products."""

from tpusim.program import (
    CombinedWork,
    Compute,
    ConvolutionWork,
    EstimatedWork,
    MatmulWork,
    Phase,
    Program,
    dumps,
    loads,
)

PRODUCTS = CombinedWork(
    (MatmulWork(1, 64, 128, 256, "bf16", 10, 3), ConvolutionWork(2, 9, 4, 8, 16, "int8", 20, 5))
)
PROGRAM = Program(
    name="p",
    axes=(("all", 4),),
    body=(
        Compute(name="one", phase=Phase.FORWARD, work=EstimatedWork("convolution", 2.5e6, 7, 8)),
        Compute(name="two", phase=Phase.FORWARD, work=PRODUCTS),
    ),
)


def test_it_comes_back_from_a_file() -> None:
    assert loads(dumps(PROGRAM)) == PROGRAM


def test_several_products_move_what_each_moves() -> None:
    assert (PRODUCTS.read_bytes, PRODUCTS.write_bytes) == (30, 8)


def test_it_prints_cycles_and_each_product() -> None:
    text = str(PROGRAM)
    assert "convolution of 2500 thousand cycles" in text
    assert "matmul [64, 128, 256] bf16 and convolution 2 x 9 positions" in text
