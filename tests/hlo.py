"""Modules of HLO text, for tests; they need jaxlib."""

import pytest

from tpusim.xla.module import Module


def module_of(text: str) -> Module:
    """The module of some text; skips the test where jaxlib is missing."""
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    from tpusim.xla.read import read_module

    return read_module(text.encode())
