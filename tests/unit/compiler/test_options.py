"""Flags of the compiler: which are taken, and how they are kept."""

from typing import Any

import pytest

from tpusim.base import CompileError
from tpusim.compiler.options import check_options, flags_of


def test_flags_are_those_of_the_environment_and_then_the_program_s(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1  --xla_b=2")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_c=3")
    options = check_options({"xla_e": True, "xla_d": "x"})
    assert flags_of(options) == (
        "--xla_a=1", "--xla_b=2", "--xla_tpu_c=3", "--xla_d=x", "--xla_e=true",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--xla_a=1", "compiler_options is '--xla_a=1'; write values by the names of flags"),
        (["--xla_a=1"], r"compiler_options is \['--xla_a=1'\]; write values"),
        ({"--xla_a": 1}, "has '--xla_a'; write the name of a flag alone, without dashes"),
        ({"xla_a=1": 1}, "has 'xla_a=1'; write the name of a flag alone"),
        ({3: 1}, "has 3; write the name of a flag alone"),
        ({"xla_dump_to": "here"}, "has 'xla_dump_to', which the memory report needs"),
        ({"xla_a": None}, r"compiler_options\['xla_a'\] is None; write a string, a number"),
    ],
)
def test_what_is_no_option_is_one_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(CompileError, match=sentence):
        check_options(options)
