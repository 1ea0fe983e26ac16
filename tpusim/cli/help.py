"""The help of the commands: arguments by their names alone, and an example that works.

The examples are run from the folder of the sources.
"""

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

RUN = "experiments/bert_480b/run.toml"
"""The run of the examples."""

EXAMPLES: Mapping[str, str] = {
    "simulate": f"tpusim simulate {RUN} --set plan.remat=minimal",
    "advise": f"tpusim advise {RUN} --top 3",
    "train": "tpusim train experiments/training_runs/bert_480b.toml",
    "serve": "tpusim serve experiments/serving/llama3_8b.toml --set traffic.rate=8",
    "input-rate": "tpusim input-rate",
    "check": f"tpusim check {RUN}",
    "export": f"tpusim export {RUN} --out step.py",
    "compare": f"tpusim compare {RUN} --set plan.remat=minimal",
    "sweep": "tpusim sweep experiments/mesh_shapes/sweep.toml --out table",
    "search": "tpusim search experiments/search_530b/search.toml --set search.chips=[2048,2048]",
    "scaling": f"tpusim scaling {RUN} --chips 512,1024,2048",
    "validate": "tpusim validate tests/measured/runs/later",
    "calibrate": "tpusim calibrate tests/measured/runs/later/yx-v6e-8-272m-b8.toml --out mine.toml",
    "chips": "tpusim chips v5p",
    "availability": "tpusim availability v4 8x16x16 --host-availability 0.995",
    "keys": "tpusim keys plan.attention",
    "models": "tpusim models llama3.1-8b",
    "compile": "tpusim compile step.mlir --slice v5e:4x4 --mesh data=16 --out step.hlo.gz",
    "replay": "tpusim replay tests/data/hlo/decoder_v5e_2x2_x2.hlo.gz",
    "diagnose": "tpusim diagnose tests/data/profiles/scan_mlp_v5e_2x2.xplane.pb.gz",
    "conv": "tpusim explain conv --chip v5e --input 32x56x56x64 --kernel 3x3x64",
}
"""An example of each command, by its name."""


FIRST_OPTIONS = ("--set",)
LAST_OPTIONS = (
    *("--stats", "--fold", "--program", "--explain", "--without", "--full", "--time-limit"),
    *("--workers", "--cluster", "--out", "--html", "--csv", "--json", "--quiet", "--help"),
)
"""Options that stand before and after a command's own ones in each help, in this order."""


class Command(TyperCommand):
    """A command whose help begins with an example, and has its arguments by their names."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the example, the usage, what the command does, its arguments and options."""
        write_example(formatter, EXAMPLES[self.name or ""])
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command in the line of its usage."""
        return [self.options_metavar or "", *map(_usage, filter(_is_argument, self.params))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, those that commands share in one order."""
        found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in sorted(self.get_params(ctx), key=_place):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if _is_argument(param):
                found["Arguments"].append((param.metavar or param.name, record[1]))
            else:
                found["Options"].append(record)
        for name, records in found.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group of commands whose help begins with an example, its epilog."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the example, the usage, what the group does, its options and commands."""
        write_example(formatter, self.epilog or "")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)


def write_example(formatter: Any, command: str) -> None:
    """Write the example at the top of a help."""
    with formatter.section("Example"):
        indent = " " * formatter.current_indent
        lines = _continued(command, formatter.width - 2 * len(indent) - 2)
        formatter.write("".join(f"{indent}{line}\n" for line in lines))
    formatter.write("\n")


def _place(param: Any) -> tuple[int, int]:
    """Return the sort key of an option in a help; a command's own ones stay as they are."""
    for name in param.opts:
        if name in FIRST_OPTIONS:
            return 0, FIRST_OPTIONS.index(name)
        if name in LAST_OPTIONS:
            return 2, LAST_OPTIONS.index(name)
    return 1, 0


class App(typer.Typer):
    """A Typer application of such commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(
        self, name: str | None = None, *, cls: Any = Command, **options: Any
    ) -> Callable[[Any], Any]:
        """Return a decorator that makes a function a command."""
        return super().command(name, cls=cls, **options)


def _continued(command: str, width: int) -> list[str]:
    """Return the lines of a command, which a shell reads as one, broken before options."""
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"  --{option}")
        else:
            lines[-1] += f" --{option}"
    return lines


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _usage(param: Any) -> str:
    """Return an argument in a usage: `RUN.toml`, `[NAME]`, `A B...`."""
    name = param.metavar or param.name
    several = "" if param.nargs == 1 or name.endswith("...") else "..."
    return f"{name}{several}" if param.required else f"[{name}{several}]"
