"""Flags of XLA and libtpu: those of one program, and those that the environment sets for all."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from tpusim.base.errors import CompileError

Option: TypeAlias = str | bool | int | float

ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables that libtpu reads when it is loaded."""

_DUMP = ("xla_dump_to", "xla_dump_hlo_as_text")


def with_dump(options: Mapping[str, Option], folder: str) -> dict[str, Option]:
    """Return the options, and those with which the compiler dumps its reports into the folder."""
    return {**options, **dict(zip(_DUMP, (folder, True), strict=True))}


def check_options(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options sorted by name. Raise CompileError for malformed ones."""
    if not isinstance(options, Mapping):
        raise CompileError(
            f"compiler_options is {options!r}; write values by the names of flags: "
            "{'xla_tpu_scoped_vmem_limit_kib': 98304}"
        )
    for name, value in options.items():
        if not isinstance(name, str) or name.startswith("-") or "=" in name:
            raise CompileError(
                f"compiler_options has {name!r}; write the name of a flag alone, without dashes: "
                "{'xla_tpu_scoped_vmem_limit_kib': 98304}"
            )
        if name in _DUMP:
            raise CompileError(
                f"compiler_options has {name!r}, which the memory report needs; to keep what the "
                "compiler dumps, set XLA_FLAGS and compile with cache=False"
            )
        if not isinstance(value, (str, bool, int, float)):
            raise CompileError(
                f"compiler_options[{name!r}] is {value!r}; write a string, a number or a bool"
            )
    return dict(sorted(options.items()))


def own_options(traced: Any) -> dict[str, Option]:
    """Return the options of a jitted function, from `jax.jit(fn, compiler_options=...)`.

    The program before compilation does not show them; JAX keeps them with the trace.
    """
    return dict(getattr(traced, "_params", {}).get("compiler_options_kvs", ()))


def flags_of(options: Mapping[str, Option]) -> tuple[str, ...]:
    """Return all flags as on a command line; options take precedence over the environment."""
    set_before = [flag for name in ENVIRONMENT for flag in os.environ.get(name, "").split()]
    return (*set_before, *(f"--{name}={_spelt(value)}" for name, value in options.items()))


def _spelt(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
