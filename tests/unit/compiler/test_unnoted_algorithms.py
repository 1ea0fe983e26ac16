"""Programs without the notes that generating code adds: they replay as those that have them."""

import re
from dataclasses import replace

import pytest
from compiler_parts import unnoted_algorithm
from extent import thorough
from hlo import DATA

import tpusim as ts
from tpusim.program import CollectiveKind

NOTES = r'"(?:collective_algorithm_config":\{[^{}]*\}|estimated_cycles":"\d+"),?'


@pytest.mark.parametrize(
    "file",
    [
        "decode_7x_2x2x1",
        thorough("decoder_v5e_2x2_x2"),
        "decoder_v5p_2x2x1",
        thorough("encoder_v4_2x2x4"),
        thorough("moe_v6e_4x4"),
    ],
)
def test_step_memory_and_collectives_do_not_change(file: str) -> None:
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    noted = ts.xla.load(DATA / f"{file}.hlo.gz")
    text, count = re.subn(NOTES, "", noted.hlo)
    assert count > 10
    left = ts.simulate(replace(noted, data=text.encode(), until="schedule"))
    whole = ts.simulate(noted)
    assert left.step_time_s == whole.step_time_s
    assert left.hbm_peak_bytes == whole.hbm_peak_bytes
    assert left.hfu == whole.hfu
    assert str(ts.explain_collectives(left)) == str(ts.explain_collectives(whole))


@pytest.mark.parametrize(
    ("generation", "kind", "sides", "devices", "nbytes", "algorithm"),
    [
        ("v5p", "all-gather", (2, 2), 4, 1e6, "nd"),
        ("v5p", "all-gather", (2, 4), 8, 1e6, ""),
        ("v5p", "all-reduce", (2, 2), 4, 1e6, ""),
        ("v5p", "all-gather", (2, 2, 2), 8, 1e6, "nd"),
        ("7x", "all-reduce", (2, 2, 2), 16, 4, ""),
        ("v5e", "all-reduce", (2, 2), 4, 1e6, "ring"),
        ("v5e", "all-gather", (2, 2), 4, 1e6, ""),
        ("7x", "all-reduce", (2, 2, 2), 8, 4, "ring"),
        ("7x", "all-reduce", (2, 2, 2), 8, 18432, ""),
        ("7x", "all-gather", (2, 2, 2), 8, 4, ""),
        ("v4", "reduce-scatter", (4,), 4, 1e6, ""),
    ],
)
def test_what_is_not_the_default(
    generation: str, kind: str, sides: tuple[int, ...], devices: int, nbytes: float, algorithm: str
) -> None:
    rules = ts.load_chip(generation).compiler_rules
    assert unnoted_algorithm(rules, CollectiveKind(kind), sides, devices, nbytes) == algorithm
