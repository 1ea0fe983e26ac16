"""Compile training steps of packages for a slice that is not there, and print a table of them.

python compile.py                       all programs, on v5e:2x2
python compile.py nnx keras --small --slice v6e:2x2
"""

import argparse
from importlib.metadata import version

import jax
from jax.sharding import PartitionSpec as P
from programs import FULL, PROGRAMS, SMALL, Sizes

import tpusim as ts
from tpusim.base.units import format_seconds


def compiled(name: str, sizes: Sizes, pod: str) -> ts.xla.Compiled:
    """Return a program with its batch sharded over four devices, and all else on each of them."""
    step, args = PROGRAMS[name][1](sizes)
    return ts.xla.compile(
        step, *args, name=name, slice=pod, mesh={"data": 4}, until="schedule",
        in_shardings=(P(), P("data"), *(P() for _ in args[2:])), out_shardings=P(), donate=(0,),
    )  # fmt: skip


def row(name: str, sizes: Sizes, pod: str) -> str:
    """Return the line of the table for one program, or the reason why there is none."""
    package = PROGRAMS[name][0]
    try:
        program = compiled(name, sizes, pod)
    except Exception as error:  # of any package
        said = " ".join(str(error).split())[:200]
        return f"| {name} | {type(error).__name__}: {said} |"
    weights = jax.tree.leaves(PROGRAMS[name][1](sizes)[1][0])
    million = sum(leaf.size for leaf in weights) / 1e6
    result = ts.simulate(program)
    mfu = "" if result.mfu is None else f"{result.mfu:.1%}"
    return (
        f"| {package} {version(package)} | `{name}` | {million:,.0f}M | {pod} | "
        f"{format_seconds(result.step_time_s)} | {mfu} | {result.unknown_share:.2%} | "
        f"{ts.explain_lines(result).rows[0].place} |"
    )


def main() -> None:
    """Compile the programs that are named, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--slice", default="v5e:2x2", help="of four devices")
    parser.add_argument("--small", action="store_true", help="one layer of each")
    given = parser.parse_args()
    for name in given.names or PROGRAMS:
        print(row(name, SMALL if given.small else FULL, given.slice), flush=True)


if __name__ == "__main__":
    main()
