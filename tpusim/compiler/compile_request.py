"""What the TPU compiler is asked, as files, and the child process that compiles them.

All uses of JAX's private names for this are in this file. A request is a folder: the program before
compilation with its source lines (`program`), the options that JAX itself would give the compiler
(`options`), and the slice with the order of its devices (`devices.json`).

The child runs none of the user's code, and ends itself, or is ended from outside once the dump is
whole. Its standard input is a pipe that its parent never writes to: where the pipe ends, or the
parent is another, the child removes the folder and ends itself, so that neither outlives a parent
that was killed. An error is written to `ERROR` as JSON, and a program that was compiled to the end
to `MADE`.
"""

import json
import os
import select
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.compiler.compiled import Compiled
from tpusim.compiler.memory_report import memory_report
from tpusim.compiler.options import Option
from tpusim.compiler.topologies import devices_of
from tpusim.hardware import Slice, parse_slice

PROGRAM, OPTIONS, DEVICES, DUMP = "program", "options", "devices.json", "dump"
"""Names of the files, and of the folder for the compiler's dump."""
ERROR, MADE = "error.json", "made.hlo"
"""Names of what the child writes."""

_CHECKED_EVERY_S = 1.0

_CALLED_BACK = b"CustomSPMDPartitioning"
"""Custom call whose partitioning is a Python function of the process that lowered it."""


class CalledBackError(CompileError):
    """A program that only the process that lowered it can compile."""


def write_request(lowered: Any, pod: Slice, options: dict[str, Option], folder: Path) -> None:
    """Write what `lowered.compile(compiler_options=options)` would ask the compiler.

    lowered: a `jax.stages.Lowered`, whose devices are those of the slice.

    Raise CalledBackError for a program that only this process can compile.
    """
    import io

    import numpy as np
    from jax._src.interpreters import pxla

    computation = lowered._lowering
    module, given = lowered.compiler_ir("stablehlo"), computation.compile_args
    written = io.BytesIO()
    module.operation.write_bytecode(file=written)
    if _CALLED_BACK in written.getvalue():
        raise CalledBackError(
            "a function of jax.experimental.custom_partitioning is called back while the program "
            "is compiled, which a process of its own cannot do; write until='code', without a "
            "time_limit"
        )
    devices = computation._device_list
    inward, outward = (
        tuple(pxla.maybe_concretize_mesh(each, devices) for each in given[key])
        for key in ("in_shardings", "out_shardings")
    )
    free = pxla.get_prop_to_input_output(inward, outward, len(given["ordered_effects"]))
    order = np.empty(len(devices), object)
    order[:] = list(devices)
    chosen = {**dict(computation._compiler_options_kvs), **options}
    made = pxla.create_compile_options(
        module, given["tuple_args"], *free, given["backend"], order, chosen
    )
    numbers = {device: number for number, device in enumerate(devices_of(pod))}
    (folder / PROGRAM).write_bytes(written.getvalue())
    (folder / OPTIONS).write_bytes(made.SerializeAsString())
    facts = {"slice": pod.machine, "devices": [numbers[device] for device in devices]}
    (folder / DEVICES).write_text(json.dumps(facts), "utf-8")


def compile_request(folder: Path) -> tuple[Callable[[], str], Any]:
    """Compile a request. Return a function for the program's text, and the summary of its memory.

    Raise JAX's own errors.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    facts = json.loads((folder / DEVICES).read_text("utf-8"))
    known = devices_of(parse_slice(facts["slice"]))
    devices = xla_client.DeviceList(tuple(known[number] for number in facts["devices"]))
    options = xla_client.CompileOptions.ParseFromString((folder / OPTIONS).read_bytes())
    with mlir.make_ir_context():
        module = ir.Module.parse((folder / PROGRAM).read_bytes())
        client = known[0].client
        made = client.compile(module, executable_devices=devices, compile_options=options)

    def text() -> str:
        return "\n\n".join(module.to_string() for module in made.hlo_modules())

    return text, made.get_compiled_memory_stats()


def main(folder: str, until: str) -> None:
    """Compile the request in the folder, and end the process: with code 0, or 1 for an error.

    until: `code` to write the program too.
    """
    request = Path(folder)
    threading.Thread(target=_end_with_parent, args=(request, os.getppid()), daemon=True).start()
    try:
        text, stats = compile_request(request)
        if until == "code":
            memory = memory_report(request / DUMP, stats)
            Compiled(name=DUMP, data=text().encode(), memory=memory).save(request / MADE)
    except Exception as error:
        said = {"kind": type(error).__name__, "text": str(error)}
        (request / ERROR).write_text(json.dumps(said), "utf-8")
        os._exit(1)
    os._exit(0)


def _end_with_parent(folder: Path, parent: int) -> None:
    while os.getppid() == parent:
        ended, _, _ = select.select([0], [], [], _CHECKED_EVERY_S)
        if ended and not os.read(0, 1):
            break
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # what the compiler wrote meanwhile
    os._exit(2)
