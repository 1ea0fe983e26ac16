"""Numerics of a measured run: its matmuls, weights, gradients and moments."""

from collections.abc import Iterator

from tpusim.validation.frameworks import framework_of
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.remarks import remarks_of

QUANTISED_DTYPES = ("int8", "fp8")


def dtypes_of(run: MeasuredRun) -> dict[str, str]:
    """Return the dtypes of weights, moments and gathers where no remark in the notes names another.

    Moments default to the dtype of the weights: `mu_dtype` of optax.adamw sets the first moment
    only, and MaxText uses the dtype of the weights where it is not given.
    """
    weights = remarks_of(run).plan.get("param_dtype", framework_of(run).param_dtype)
    gathers = {"gather_dtype": run.dtype} if _gathers_int8(run) else {}
    noise = {"quantisation_noise": framework_of(run).int8_noise} if run.dtype == "int8" else {}
    return {
        **dict.fromkeys(("param_dtype", "moment_dtype", "second_moment_dtype"), weights),
        **gathers,
        **noise,
    }


def _gathers_int8(run: MeasuredRun) -> bool:
    return run.dtype == "int8" and framework_of(run).int8_gathers


def dtype_notes(run: MeasuredRun) -> Iterator[str]:
    """Yield a note for dtypes that are assumed, or come from the framework."""
    if run.dtype in QUANTISED_DTYPES:
        yield (
            f"{run.dtype} taken for the layers' matmuls with weights, forward and both backward "
            "ones, as MaxText's recipes have it; all else in bf16"
        )
    if _gathers_int8(run):
        yield "operands of int8 matmuls are quantised before they are gathered, as AQT's are"
    noise = remarks_of(run).plan.get("quantisation_noise", framework_of(run).int8_noise)
    if run.dtype == "int8" and noise:
        yield f"gradients are rounded to int8 with random numbers of {noise}, as AQT does"
    framework = framework_of(run)
    if "param_dtype" not in remarks_of(run).plan and framework.param_dtype != "f32":
        yield (
            f"weights, and moments that the notes do not name, in {framework.param_dtype}, as "
            f"{run.framework} has them"
        )
