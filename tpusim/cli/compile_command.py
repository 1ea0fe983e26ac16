"""The command `tpusim compile`."""

from pathlib import Path

from tpusim.base.errors import FileError
from tpusim.cli.replay_command import parse_mesh_option
from tpusim.hardware import parse_slice
from tpusim.results.summary import summary
from tpusim.simulation import replay

SUFFIXES = (".hlo", ".hlo.gz")


def compile_file(
    path: str, *, pod: str, mesh: str | None, out: str | None, full: bool, time_limit: float
) -> str:
    """Compile an exported program, and return what is known of it with the report of its replay.

    out: HLO file to write; None for none.
    full: generate code too.
    time_limit: seconds for the compiler.

    Raise TpusimError for a program, a slice or a mesh that does not fit, before it is compiled.
    """
    if out is not None and not out.endswith(SUFFIXES):
        raise FileError(f"--out is {out!r}; give a file that ends in {' or '.join(SUFFIXES)}")
    axes = None if mesh is None else parse_mesh_option(mesh)
    from tpusim.compiler import compile

    compiled = compile(
        Path(path),
        slice=parse_slice(pod),
        mesh=axes,
        until="code" if full else "schedule",
        time_limit=time_limit,
    )
    parts = [str(compiled), summary(replay(compiled))]
    if out is not None:
        compiled.save(out)
        parts.append(f"program     {out}")
    return "\n\n".join(parts)
