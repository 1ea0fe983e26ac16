"""Commands that show what the catalogue and the cost model know."""

from typing import Annotated

import typer

from tpusim.cli.app import AsJson, app, explain_app
from tpusim.cli.completion import complete_chip


@app.command()
def chips(
    name: Annotated[
        str | None, typer.Argument(help="A chip, such as v5p.", autocompletion=complete_chip)
    ] = None,
) -> str:
    """Show the catalogue, or every number of one chip with its source."""
    from tpusim.hardware import show_chip, show_chips

    return show_chips() if name is None else show_chip(name)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="A model, such as llama3.1-8b.")] = None,
    as_json: AsJson = False,
) -> str:
    """List the published models, or show one: dimensions, parameters, source."""
    from tpusim.cli.models_command import show_models

    return show_models(name, as_json=as_json)


@explain_app.callback()
def explain_root() -> None:
    """Show what one operation costs, and what other shapes would."""


@explain_app.command()
def conv(
    chip: Annotated[str, typer.Option("--chip", metavar="NAME", help="A chip, such as v5p.")],
    image: Annotated[
        str,
        typer.Option("--input", metavar="NxHxWxC", help="Of one device: 256x224x224x3."),
    ],
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="HxWxC", help="Taps and results: 7x7x64.")
    ],
    stride: Annotated[int, typer.Option("--stride", help="Of every dimension.")] = 1,
    dilation: Annotated[int, typer.Option("--dilation", help="Of every dimension.")] = 1,
    groups: Annotated[int, typer.Option("--groups", help="Feature groups.")] = 1,
    padding: Annotated[str, typer.Option("--padding", help="SAME or VALID.")] = "SAME",
    gradient: Annotated[
        str | None, typer.Option("--gradient", help="Of the input or the weight.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="That the array multiplies.")] = "bf16",
) -> str:
    """Show the implicit matmul of a convolution, its time, and what other shapes would take."""
    from tpusim.cli.explain_command import explain_convolution

    return explain_convolution(
        chip, image, kernel, stride=stride, dilation=dilation, groups=groups, padding=padding,
        gradient=gradient, dtype=dtype,
    )  # fmt: skip
