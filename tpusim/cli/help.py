"""The help of the commands: arguments by their names alone, and an example that works.

The examples are run from the folder of the sources.
"""

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

RUN = "experiments/bert_480b/run.toml"
"""The run of the examples."""

EXAMPLES: Mapping[str, str] = {
    "simulate": f"tpusim simulate {RUN} --set plan.remat=minimal",
    "advise": f"tpusim advise {RUN} --top 3",
    "train": "tpusim train experiments/training_runs/bert_480b.toml",
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
    "models": "tpusim models llama3.1-8b",
    "compile": "tpusim compile step.mlir --slice v5e:4x4 --mesh data=16 --out step.hlo.gz",
    "replay": "tpusim replay tests/data/hlo/decoder_v5e_2x2_x2.hlo.gz",
    "diagnose": "tpusim diagnose tests/data/profiles/scan_mlp_v5e_2x2.xplane.pb.gz",
    "conv": "tpusim explain conv --chip v5e --input 32x56x56x64 --kernel 3x3x64",
}
"""An example of each command, by its name."""


class Command(TyperCommand):
    """A command whose help has its arguments by their names, and ends with an example."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command in the line of its usage."""
        return [self.options_metavar or "", *map(_usage, filter(_is_argument, self.params))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
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

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example."""
        with formatter.section("Example"):
            indent = " " * formatter.current_indent
            lines = _continued(EXAMPLES[self.name or ""], formatter.width - 2 * len(indent) - 2)
            formatter.write("".join(f"{indent}{line}\n" for line in lines))


class PlanCommand(Command):
    """A command whose help also lists the plan's keys that take one of some words."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the keys, which load only when help is asked for, and the example."""
        from tpusim.plan import PLAN_CHOICES, PLAN_KEYS

        rows = [(f"plan.{key}", ", ".join(PLAN_CHOICES[key])) for key in PLAN_KEYS.table
                if key in PLAN_CHOICES]  # fmt: skip
        with formatter.section("Keys of some words"):
            formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)


class App(typer.Typer):
    """A Typer application of such commands."""

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
