"""Compile the programs beside this file for TPU slices, without a TPU.

python compile.py decoder                                    the full size, for its own slice
python compile.py decoder --slice v5e:4x4 --mesh fsdp=4,tensor=4 --small --out decoder.hlo.gz
python compile.py all --small --out ../../tests/data/hlo     all small ones, and their manifest
python compile.py encoder --set layers=2 --set batch=1024
"""

import argparse
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import tpusim as ts

NAMES = ("encoder", "decoder", "moe", "pipeline", "convolution", "decode")


def runs_of(module, small):
    """Return slice, mesh and changed sizes of each run that a program's file lists."""
    return [(*run, {})[:3] for run in module.RUNS["small" if small else "full"]]


def sizes_of(module, small, own, changes):
    """Return the sizes of a program, with the changes of a run and of `--set`."""
    sizes = {**(module.SMALL if small else module.FULL), **own}
    for key, value in (change.split("=") for change in changes):
        if key not in sizes:
            raise SystemExit(f"--set {key}: valid are {', '.join(sizes)}")
        sizes[key] = json.loads(value)
    return sizes


def compiled(name, slice_, mesh, sizes):
    """Compile a program for a slice; return it with the description in its file."""
    module = importlib.import_module(name)
    program = module.program(mesh, **sizes)
    found = ts.xla.compile(
        program.step, *program.args, name=name, slice=slice_, mesh=mesh,
        in_shardings=program.shardings, out_shardings=program.out_shardings,
        donate=program.donate, model_flops=program.model_flops,
    )  # fmt: skip
    return found, program


def line(name, slice_, mesh, sizes, found, program):
    """Return a program's line of the manifest."""
    return {
        "program": name, "slice": slice_, "mesh": mesh, "sizes": sizes,
        "model_flops": program.model_flops, "step_flops": program.step_flops,
        "expected": list(program.expected), "total_bytes": found.memory.total,
        "versions": dict(found.versions),
    }  # fmt: skip


def file_name(name, slice_):
    """Return a name such as `decoder_v5e_4x4_x2.hlo.gz`."""
    return f"{name}_{re.sub(r'[^a-z0-9]+', '_', slice_.replace(' x ', '_x'))}.hlo.gz"


def short_paths(data):
    """Return HLO that names the user's files without their folders, which differ elsewhere."""
    return re.sub(rb'^(\d+ ")/[^"\n]*/([^"/\n]+\.py")$', rb"\1\2", data, flags=re.MULTILINE)


def make_all(names, small, changes, out):
    """Compile each program for each of its slices, and write the manifest beside them."""
    out.mkdir(parents=True, exist_ok=True)
    manifest = out / "manifest.json"
    lines = json.loads(manifest.read_text("utf-8"))["files"] if manifest.exists() else {}
    for name in names:
        module = importlib.import_module(name)
        for slice_, mesh, own in runs_of(module, small):
            sizes = sizes_of(module, small, own, changes)
            found, program = compiled(name, slice_, mesh, sizes)
            print(found, flush=True)
            file = file_name(name, slice_)
            replace(found, data=short_paths(found.data)).save(out / file)
            lines[file] = line(name, slice_, mesh, sizes, found, program)
    command = "python compile.py all --small --out ../../tests/data/hlo"
    rows = ",\n".join(f'"{file}": {json.dumps(lines[file])}' for file in sorted(lines))
    manifest.write_text(f'{{"command": "{command}",\n"files": {{\n{rows}\n}}}}\n', "utf-8")


def main():
    """Compile the programs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=(*NAMES, "all"))
    parser.add_argument("--slice", help="such as v5e:4x4; its own if not given")
    parser.add_argument("--mesh", help="such as fsdp=4,tensor=4")
    parser.add_argument("--small", action="store_true", help="few, narrow layers")
    parser.add_argument("--set", action="append", default=[], metavar="SIZE=VALUE")
    parser.add_argument("--out", type=Path, help="a file, or for `all` a folder")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if given.program == "all":
        make_all(NAMES, given.small, given.set, given.out or Path("hlo"))
        return
    module = importlib.import_module(given.program)
    slice_, mesh, own = runs_of(module, given.small)[0]
    if given.mesh:
        mesh = {axis: int(size) for axis, size in (p.split("=") for p in given.mesh.split(","))}
    sizes = sizes_of(module, given.small, own, given.set)
    found, program = compiled(given.program, given.slice or slice_, mesh, sizes)
    print(found)
    print(f"  step FLOPs   {program.step_flops:.4g} (with recomputation, closed form)")
    if given.out:
        found.save(given.out)


if __name__ == "__main__":
    main()
