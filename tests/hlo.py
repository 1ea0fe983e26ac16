"""HLO for tests: small texts written by hand, and the real ones in tests/data/hlo."""

from pathlib import Path

from tpusim.xla.module import Module
from tpusim.xla.read import read_module

DATA = Path(__file__).parent / "data" / "hlo"
REAL = DATA / "scan_mlp_v5e_2x2.hlo.gz"
F32 = "f32[256,256]{1,0:T(8,128)}"


def text(main: str, before: str = "", head: str = ", is_scheduled=true") -> str:
    """A module whose entry takes %p, a tiled f32[256,256], and has these instructions."""
    return (
        f"HloModule by_hand{head}\n\n{before}\n"
        f"ENTRY %main (p: f32[256,256]) -> f32[256,256] {{\n"
        f"  %p = {F32} parameter(0)\n  {main.strip()}\n}}\n"
    )


def module(main: str, before: str = "", head: str = ", is_scheduled=true") -> Module:
    """That text, read."""
    return read_module(text(main, before, head).encode())
