"""Dtypes that the notes of a run give: of weights, of gradients, of Adam's first moment.

A remark is read where it stands by itself, between full stops, commas or semicolons, and says a
word and a dtype: `mu bf16`, `grad bf16`, `weights bf16` or `fp32 weights`. All else is prose.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.validation.frameworks import framework_of
from tpusim.validation.measured import Measured

DTYPES: Mapping[str, str] = {
    "bf16": "bf16", "bfloat16": "bf16", "f32": "f32", "fp32": "f32", "float32": "f32",
}  # fmt: skip
_WORDS = {"weights": "param_dtype", "mu": "moment_dtype", "grad": "grad_dtype"}
_SAID = {
    "param_dtype": "weights, and moments that the notes do not name,",
    "moment_dtype": "Adam's first moment",
    "grad_dtype": "gradients",
}
_DTYPE = "|".join(DTYPES)
_REMARK = re.compile(
    rf"(?P<word>{'|'.join(_WORDS)}) (?P<after>{_DTYPE})|(?P<before>{_DTYPE}) weights"
)


def remarks(run: Measured) -> dict[str, str]:
    """The dtype by the key of a plan, for each remark; of two that differ, neither is taken."""
    found: dict[str, str] = {}
    unsure: set[str] = set()
    for part in re.split(r"[.;,]", run.notes):
        remark = _REMARK.fullmatch(part.strip())
        if remark is None:
            continue
        key = _WORDS[remark["word"] or "weights"]
        dtype = DTYPES[remark["after"] or remark["before"]]
        if found.setdefault(key, dtype) != dtype:
            unsure.add(key)
    return {key: dtype for key, dtype in found.items() if key not in unsure}


def precision_of(run: Measured) -> dict[str, Any]:
    """The dtypes of a plan as the notes give them, or as the framework has them.

    Moments have the weights' dtype where nothing else is said: `mu_dtype` of optax.adamw sets the
    first one alone, and MaxText takes the weights' for it where it is not given.
    """
    found = {"param_dtype": framework_of(run).param_dtype} | remarks(run)
    weights = found["param_dtype"]
    return {"moment_dtype": weights, "second_moment_dtype": weights} | found


def precision_notes(run: Measured) -> Iterator[str]:
    """What is taken from the notes and from the framework."""
    if "param_dtype" not in remarks(run) and framework_of(run).param_dtype != "f32":
        dtype = framework_of(run).param_dtype
        yield f"{_SAID['param_dtype']} in {dtype}, as {run.framework} has them"
    for key, dtype in remarks(run).items():
        yield f"{_SAID[key]} in {dtype}, as the notes say"
