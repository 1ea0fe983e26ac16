"""Convolutions and pools as JAX expressions."""

from collections.abc import Iterable
from math import prod

from tpusim.export.names import quoted, unsaid
from tpusim.graph import Convolution, ConvolutionWindow, DimSizes, Pool


def convolution(op: Convolution, activation: str, kernel: str, sizes: DimSizes) -> str:
    """Return the expression of a convolution.

    activation, kernel: expressions of the operands.

    Raise PlanError for one with several dimensions of examples or of channels.
    """
    if len(op.examples) != 1 or len(op.out_channels) != 1 or len(op.in_channels) > 1:
        raise unsaid(op.name, "a convolution with several dimensions of examples or of channels")
    groups, inside = op.groups, op.in_channels
    kernel_dims = list(op.kernel.dims)
    if op.depthwise:
        place = kernel_dims.index(op.out_channels[0])
        kernel_dims.insert(place, "")
        kernel, inside = f"jnp.expand_dims({kernel}, {place})", ("",)
        groups = sizes[op.out_channels[0]]
    spatial = {
        dim: str(at)
        for at, window in enumerate(op.windows)
        for dim in (window.in_dim, window.out_dim, window.tap_dim)
    }
    examples = dict.fromkeys(op.examples, "N")
    written = (
        "".join({**examples, **spatial}.get(dim, "C") for dim in op.activation.dims),
        "".join({inside[0]: "I", op.out_channels[0]: "O", **spatial}[dim] for dim in kernel_dims),
        "".join({**examples, **spatial}.get(dim, "C") for dim in op.output.dims),
    )
    given = [activation, kernel, _each(w.stride for w in op.windows), _pads(op.windows, sizes)]
    given += _other("lhs_dilation", [w.input_dilation for w in op.windows])
    given += _other("rhs_dilation", [w.dilation for w in op.windows])
    given += ["dimension_numbers=(" + ", ".join(map(quoted, written)) + ")"]
    given += [f"feature_group_count={groups}"] if groups > 1 else []
    return f"lax.conv_general_dilated({', '.join(given)})"


def pool(op: Pool, activation: str, sizes: DimSizes) -> str:
    """Return the expression of a pool; elements of a padding count in a mean."""
    windows = {window.in_dim: window for window in op.windows}
    taps = [sizes[windows[dim].tap_dim] if dim in windows else 1 for dim in op.activation.dims]
    start, reduce = ("-jnp.inf", "lax.max") if op.maximum else ("0.0", "lax.add")
    found = [windows.get(dim) for dim in op.activation.dims]
    strides = _each(window.stride if window else 1 for window in found)
    pads = (
        window.pads(sizes[window.in_dim], sizes[window.tap_dim]) if window else (0, 0)
        for window in found
    )
    given = [activation, start, reduce, _each(taps), strides, _each(pads)]
    given += _other("window_dilation", [window.dilation if window else 1 for window in found])
    made = f"lax.reduce_window({', '.join(given)})"
    return made if op.maximum else f"{made} / {prod(taps)}"


def _pads(windows: tuple[ConvolutionWindow, ...], sizes: DimSizes) -> str:
    return _each(window.pads(sizes[window.in_dim], sizes[window.tap_dim]) for window in windows)


def _each(values: Iterable[object]) -> str:
    return f"({''.join(f'{value}, ' for value in values).rstrip()})"


def _other(name: str, values: list[int]) -> list[str]:
    """Return an argument, unless all values are 1, as without it."""
    return [f"{name}={_each(values)}"] if set(values) != {1} else []
