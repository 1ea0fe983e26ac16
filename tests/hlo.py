"""Modules of HLO for tests, by hand and the real ones of tests/data/hlo; they need jaxlib."""

from pathlib import Path

import pytest
from compiler_parts import HloModule, read_module
from scripts import EXPERIMENTS, script

DATA = Path(__file__).parent / "data" / "hlo"
REAL = DATA / "plain" / "scan_mlp_v5e_2x2.hlo.gz"
F32 = "f32[256,256]{1,0:T(8,128)}"


def module_of(text: str) -> HloModule:
    """The module of some text; skips the test where jaxlib is missing."""
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    return read_module(text.encode(), any_compiler=True)


def main_text(main: str, before: str = "", head: str = ", is_scheduled=true") -> str:
    """A module whose entry takes %p, a tiled f32[256,256], and has these instructions."""
    return (
        f"HloModule by_hand{head}\n\n{before}\n"
        f"ENTRY %main (p: f32[256,256]) -> f32[256,256] {{\n"
        f"  %p = {F32} parameter(0)\n  {main.strip()}\n}}\n"
    )


def main_of(main: str, before: str = "", head: str = ", is_scheduled=true") -> HloModule:
    """That text, read."""
    return module_of(main_text(main, before, head))


def large_text(size: float) -> str:
    """The real program with its computations again and again under new names, so many bytes."""
    text: str = script(EXPERIMENTS / "benchmarks/large_hlo.py").large_text(size)
    return text
