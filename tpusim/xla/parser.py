"""The child process that reads HLO with jaxlib's own parser, and answers with its text as JSON.

jaxlib checks its input in C++, and some malformed HLO aborts the whole process: so it runs apart.
All that is private in jaxlib is in this file. It imports nothing of tpusim but the file beside it
that reads kernels (`mosaic.py`); `tpusim.xla.child` runs it as a file, and `framed` and `unframed`
are its protocol: eight bytes of length, big-endian, and so many bytes. A request is HLO text, or a
serialised HloModuleProto behind a zero byte, or behind a byte of one the body of a Pallas kernel in
base64. An answer is JSON: name and text of the module, or the work of the kernel, or what went
wrong under `error` or `missing`. The text is the one that jaxlib prints: checked, and always
written in one way, for `tpusim.xla.text`. Instruction by instruction, through jaxlib's objects,
50 MB took nine seconds in place of seven.
"""

import json
import os
import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO

MEMORY = 2 * 2**30
"""Bytes of address space that the process may take beyond what jaxlib takes when imported."""

KERNEL = b"\1"
"""What a request begins with that is the body of a kernel."""


def framed(data: bytes) -> bytes:
    """The bytes with their length before them."""
    return len(data).to_bytes(8, "big") + data


def unframed(stream: BinaryIO) -> bytes | None:
    """The next bytes of the stream; None where it ends before them."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "big")) if len(head) == 8 else b""
    return data if len(head) == 8 and len(data) == int.from_bytes(head, "big") else None


def parsed(hlo: Any, data: bytes) -> dict[str, str]:
    """Name and text of the module of a request; hlo: jaxlib's room of that name."""
    if data.startswith(b"\0"):
        proto = hlo.HloModule.from_serialized_hlo_module_proto(data[1:])
        module = hlo.hlo_module_from_text(proto.to_string())
    else:
        module = hlo.hlo_module_from_text(data.decode("utf-8", "replace"))
    printed = hlo.HloPrintOptions()
    printed.print_operand_shape = printed.print_program_shape = False
    return {"name": module.name, "text": module.to_string(printed)}


def _answer(data: bytes) -> dict[str, Any]:
    return _read_kernel(data[1:]) if data.startswith(KERNEL) else _read_module(data)


def _read_kernel(body: bytes) -> dict[str, Any]:
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _tpu_ext
    except ImportError as error:
        return {"missing": str(error)}
    _bound()
    try:
        found: dict[str, Any] = _mosaic().worked(ir, _tpu_ext, body)
    except Exception as error:
        return {"error": str(error) or type(error).__name__}
    return found


@lru_cache(maxsize=1)
def _mosaic() -> Any:
    """The file that reads kernels, by its path: the child need not find the package."""
    spec = spec_from_file_location("mosaic", Path(__file__).with_name("mosaic.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mosaic"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read_module(data: bytes) -> dict[str, str]:
    try:
        from jaxlib import xla_client

        hlo = xla_client.hlo
        hlo.hlo_module_from_text, hlo.HloModule.from_serialized_hlo_module_proto  # noqa: B018
        hlo.HloPrintOptions  # noqa: B018
    except (ImportError, AttributeError) as error:
        return {"missing": str(error)}
    _bound()
    try:
        return parsed(hlo, data)
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _bound() -> None:
    """Forbids core dumps, and more memory than `MEMORY`, where the system knows such limits."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY:
            with open("/proc/self/statm") as file:
                taken = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))
    except (ImportError, OSError, ValueError):
        return


def main() -> None:
    """Answers request after request; what others print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := unframed(sys.stdin.buffer)) is not None:
        answers.write(framed(json.dumps(_answer(data)).encode()))
        answers.flush()


if __name__ == "__main__":
    main()
