"""Commands that show what the catalogue and the cost model know."""

import re
from functools import partial
from typing import Annotated

import typer

from tpusim.base.errors import PlanError
from tpusim.cli.app import (
    AsJson,
    FigureFolder,
    Quiet,
    app,
    argument,
    explain_app,
    option,
    printed,
    tried_folder,
    with_files,
)
from tpusim.cli.completion import complete_chip


@app.command()
def chips(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A chip, such as v5p.", autocompletion=complete_chip),
    ] = None,
) -> str:
    """Show the catalogue, or every number of one chip with its source."""
    from tpusim.hardware import show_chip, show_chips

    return show_chips() if name is None else show_chip(name)


@app.command()
def availability(
    chip: Annotated[
        str, typer.Argument(metavar="CHIP", help="Such as v4.", autocompletion=complete_chip)
    ],
    shape: Annotated[str, argument("SHAPE", "Chips of a slice: 8x16x16.")],
    host: Annotated[
        float | None,
        option("--host-availability", "FRACTION", "Of the time in which a host is up."),
    ] = None,
    cubes: Annotated[int | None, option("--cubes", "N", "Of the pod; a whole one else.")] = None,
    spares: Annotated[
        int | None, option("--spares", "K", "Cubes beyond those needed, in place of --cubes.")
    ] = None,
    slices: Annotated[int, option("--slices", "M", "At the same time.")] = 1,
    static: Annotated[bool, option("--static", None, "Without optical switches.")] = False,
    out: FigureFolder = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> str:
    """Show how often a slice can be placed while parts of its pod have failed."""
    from tpusim.base.json_text import json_text
    from tpusim.cli.availability_command import write_availability
    from tpusim.failures import availability

    folder = tried_folder(out, "answer")
    found = availability(
        chip, shape, host_availability=host, cubes=cubes, spares=spares, slices=slices,
        static=static,
    )  # fmt: skip
    answer = json_text(found.facts()) if as_json else str(found)
    text = with_files(answer, folder, partial(write_availability, found), as_json=as_json)
    return printed(text, as_json=as_json, quiet=quiet)


@app.command()
def models(
    name: Annotated[str | None, argument("NAME", "A model, such as llama3.1-8b.")] = None,
    as_json: AsJson = False,
) -> str:
    """List the published models, or show one: dimensions, parameters, source."""
    from tpusim.cli.models_command import show_models

    return show_models(name, as_json=as_json)


@app.command()
def keys(
    prefix: Annotated[
        str, argument("PREFIX", "The beginning of keys: plan, or plan.attention.")
    ] = "",
) -> str:
    """List the keys of a run file, which --set changes, with what to write."""
    from tpusim.cli.keys_command import keys_text

    return keys_text(prefix)


@explain_app.callback()
def explain_root() -> None:
    """Show what one operation costs, and what other shapes would."""


@explain_app.command()
def conv(
    chip: Annotated[str, option("--chip", "NAME", "A chip, such as v5p.")],
    image: Annotated[str, option("--input", "NxHxWxC", "Of one device: 256x224x224x3.")],
    kernel: Annotated[str, option("--kernel", "HxWxC", "Taps and results: 7x7x64.")],
    stride: Annotated[int, option("--stride", "N", "Of every dimension.")] = 1,
    dilation: Annotated[int, option("--dilation", "N", "Of every dimension.")] = 1,
    groups: Annotated[int, option("--groups", "N", "Feature groups.")] = 1,
    padding: Annotated[str, option("--padding", "WORD", "SAME or VALID.")] = "SAME",
    gradient: Annotated[
        str | None, option("--gradient", "WORD", "input, or weight: the backward pass.")
    ] = None,
    dtype: Annotated[str, option("--dtype", "DTYPE", "That the array multiplies.")] = "bf16",
) -> str:
    """Show the implicit matmul of a convolution, its time, and what other shapes would take."""
    from tpusim.hardware import load_chip
    from tpusim.partition import DTYPE_BYTES
    from tpusim.program import convolution_work
    from tpusim.simulation.explain_convolutions import explain_convolutions

    device = load_chip(chip).device
    batch, *size, in_channels = _sizes("--input", image, "256x224x224x3")
    *window, out_channels = _sizes("--kernel", kernel, "7x7x64")
    for name, value in {"stride": stride, "dilation": dilation, "groups": groups}.items():
        if value < 1:
            raise PlanError(f"--{name} is {value}; write 1 or more")
    work = convolution_work(
        batch, size, window, in_channels, out_channels, stride=stride, dilation=dilation,
        groups=groups, padding=padding.upper(), gradient=gradient or "", dtype=dtype,
        item=DTYPE_BYTES.get(dtype, 0.0),  # an unknown one has no matrix rate, which costing says
    )  # fmt: skip
    return str(explain_convolutions([(f"{image} by {kernel}", work)], device))


def _sizes(option: str, text: str, example: str) -> list[int]:
    """Return the sizes in a text such as `7x7x64`. Raise PlanError if it has fewer than two."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){1,4}", text):
        raise PlanError(f"{option} is {text!r}; write sizes such as {example}")
    return [int(size) for size in text.split("x")]
