"""Errors of JAX and the TPU compiler, as sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tpusim.base.errors import CompileError, TpusimError, nearest
from tpusim.base.shipped_table import shipped_table
from tpusim.base.units import format_bytes
from tpusim.hardware import Slice

_MEMORY_NEEDED = re.compile(
    r"total memory required for [^(]*\(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)"
)
_MEMORY_USED = re.compile(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm")
_OPTION = re.compile(r"No such compile option: '([^']*)'")
_SCALE = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNKNOWN_AXIS = re.compile(r"Resource axis: (\w+) of (P\(.*\)) is not found in mesh: \((.*)\)")
_DETAILS = "Mismatch details (1 found):"
_SHARDING_ERRORS = (
    "must be a tree prefix",
    "duplicate entries",
    "pytree structure error",
    "leaf specifications are expected to be",
)
"""JAX's messages on shardings that do not fit; all its other errors are of the user's function."""
_UNKNOWN_SHARDING = "Unhandled OpSharding type"
"""JAX's message on a callback's result whose sharding is not given."""


@contextmanager
def explain_misfits(name: str) -> Iterator[None]:
    """Raise JAX's errors on shardings that do not fit as one sentence."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if sentence := _misfit(text):
            raise CompileError(f"{name}: {sentence}") from error
        raise


@contextmanager
def explain_program_errors(name: str) -> Iterator[None]:
    """Raise what JAX says of an exported program as one sentence: none of its code is run here."""
    try:
        yield
    except TpusimError:
        raise
    except Exception as error:
        first = _first(str(error))[:_LONGEST_REASON] or type(error).__name__
        raise CompileError(f"{name}: JAX does not take the program: {first}") from error


_LONGEST_REASON = 250
"""Characters of an error of JAX that a sentence repeats."""


def _misfit(text: str) -> str:
    """Return the sentence, or "" for other errors."""
    if found := _UNKNOWN_AXIS.search(text):
        axis, spec, axes = found.groups()
        return (
            f"the sharding {spec} names an axis {axis!r} that the mesh does not have; "
            f"{nearest(axis, re.findall(r'[^, ]+', axes.replace(chr(39), '')))}"
        )
    for row in shipped_table("compiler", "misfits.toml")["misfits"]:
        if found := re.search(row["pattern"], text):
            return str(row["sentence"]).format(*found.groups(), first=_first(text))
    return (
        f"{_first(text)}; see in_shardings"
        if any(part in text for part in _SHARDING_ERRORS)
        else ""
    )


def _first(text: str) -> str:
    """Return an error's first sentence on one line, without the comparison of trees."""
    first = re.split(r"\.\s|\n\n|\s+so the diff ", text.removeprefix(_DETAILS))[0]
    return " ".join(first.replace("pjit ", "").split()).rstrip(".")


@contextmanager
def explain_refusals(name: str, pod: Slice) -> Iterator[None]:
    """Raise the compiler's errors as one sentence."""
    try:
        yield
    except Exception as error:
        if sentence := refusal(type(error).__name__, str(error), name, pod):
            raise CompileError(sentence) from error
        raise


def refusal(kind: str, text: str, name: str, pod: Slice) -> str:
    """Return the sentence for an error of the compiler, or "" for other errors.

    kind: name of the error's class.
    """
    if is_too_large(text):
        return f"{name} does not fit {pod}: {need_of(text)}"
    if _UNKNOWN_SHARDING in text:
        return f"{name}: JAX cannot tell the sharding of a callback's result; give out_shardings"
    if kind != "JaxRuntimeError":
        return ""
    if found := _OPTION.search(text):
        return (
            f"compiler_options has {found[1]!r}, which this libtpu does not know; write the "
            "name of a flag as in LIBTPU_INIT_ARGS, without dashes"
        )
    return f"{name}: the TPU compiler refused it for {pod}: {text.splitlines()[0][:500]}"


def is_too_large(text: str) -> bool:
    """Return True if an error of the compiler says that HBM is too small."""
    return "RESOURCE_EXHAUSTED" in text


def need_of(text: str) -> str:
    """Return what a program needs that is too large, in words, from the compiler's error."""
    found = _MEMORY_NEEDED.search(text) or _MEMORY_USED.search(text)
    if found is None:
        return text.splitlines()[0][:500]
    needed, there = (format_bytes(_bytes(part)) for part in found.groups())
    return (
        f"it needs {needed} of HBM per device, and {there} can be used; shard it over more "
        "devices, save less for the backward pass (jax.checkpoint), or donate the state"
    )


def _bytes(text: str) -> float:
    scale = _SCALE.get(text[-1])
    return float(text[:-1]) * scale if scale else float(text)
