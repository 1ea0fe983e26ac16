"""Dtypes of a measured run: its matmuls, and what its notes say of weights, gradients and moments.

A remark in the notes counts if it stands alone between full stops, commas or semicolons and is a
keyword and a dtype: `mu bf16`, `grad bf16`, `weights bf16` or `fp32 weights`. Anything else is
prose.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.validation.frameworks import framework_of
from tpusim.validation.measured_runs import MeasuredRun

QUANTISED_DTYPES = ("int8", "fp8")
DTYPE_SPELLINGS: Mapping[str, str] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "f32": "f32",
    "fp32": "f32",
    "float32": "f32",
}
_DTYPE_KEYS = {"weights": "param_dtype", "mu": "moment_dtype", "grad": "grad_dtype"}
_SUBJECTS = {
    "param_dtype": "weights, and moments that the notes do not name,",
    "moment_dtype": "Adam's first moment",
    "grad_dtype": "gradients",
}
_DTYPE = "|".join(DTYPE_SPELLINGS)
_REMARK = re.compile(
    rf"(?P<keyword>{'|'.join(_DTYPE_KEYS)}) (?P<after>{_DTYPE})|(?P<before>{_DTYPE}) weights"
)


def dtypes_of(run: MeasuredRun) -> dict[str, Any]:
    """Return the dtypes of weights, gradients and moments: of the notes, else of the framework.

    Moments default to the dtype of the weights: `mu_dtype` of optax.adamw sets the first moment
    only, and MaxText uses the dtype of the weights where it is not given.
    """
    found = {"param_dtype": framework_of(run).param_dtype} | _dtypes_in_notes(run)
    weights = found["param_dtype"]
    return {"moment_dtype": weights, "second_moment_dtype": weights} | found


def dtype_notes(run: MeasuredRun) -> Iterator[str]:
    """Yield a note for each dtype that comes from the notes or from the framework."""
    if run.dtype in QUANTISED_DTYPES:
        yield (
            f"{run.dtype} taken for the layers' matmuls with weights, forward and both backward "
            "ones, as MaxText's recipes have it; all else in bf16"
        )
    noted = _dtypes_in_notes(run)
    framework = framework_of(run)
    if "param_dtype" not in noted and framework.param_dtype != "f32":
        yield f"{_SUBJECTS['param_dtype']} in {framework.param_dtype}, as {run.framework} has them"
    for key, dtype in noted.items():
        yield f"{_SUBJECTS[key]} in {dtype}, as the notes say"


def _dtypes_in_notes(run: MeasuredRun) -> dict[str, str]:
    """Return the dtype of each remark by plan key; remarks that disagree are dropped."""
    found: dict[str, str] = {}
    ambiguous: set[str] = set()
    for part in re.split(r"[.;,]", run.notes):
        remark = _REMARK.fullmatch(part.strip())
        if remark is None:
            continue
        key = _DTYPE_KEYS[remark["keyword"] or "weights"]
        dtype = DTYPE_SPELLINGS[remark["after"] or remark["before"]]
        if found.setdefault(key, dtype) != dtype:
            ambiguous.add(key)
    return {key: dtype for key, dtype in found.items() if key not in ambiguous}
