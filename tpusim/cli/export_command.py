"""The command `tpusim export`."""

from collections.abc import Sequence
from pathlib import Path

from tpusim.base.errors import FileError, blame
from tpusim.base.text_files import atomic_write, blame_writing
from tpusim.export import export_jax
from tpusim.runfile import read_run


def export_run_file(path: str, settings: Sequence[str], out: str | None) -> str:
    """Write the JAX program of a run to the file `out`, or return it where there is none."""
    run = read_run(path, settings)
    with blame(run.where):
        source = export_jax(run.model, run.plan, run.pod)
    if out is None:
        return source.rstrip("\n")
    _write(Path(out), source)
    count = len(source.splitlines())
    return f"{out}: {count} lines of JAX; python {out} trains on random tokens, on {run.pod}"


def _write(path: Path, source: str) -> None:
    if not path.name or path.is_dir():
        raise FileError(f"--out {str(path)!r} is a folder; give the name of a Python file")
    with blame_writing(path), atomic_write(path) as beside:
        beside.write_text(source, "utf-8")
