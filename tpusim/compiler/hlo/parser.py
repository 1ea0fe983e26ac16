"""Child process that reads HLO with jaxlib's own parser and answers with its text as JSON.

jaxlib checks its input in C++, and some malformed HLO aborts the whole process, so it runs in a
process of its own. All uses of jaxlib's private names are in this file. It imports nothing of
tpusim but the files beside it that read kernels (`mosaic.py`); `parser_process.py` runs it as a
script. The protocol (`pack_message`, `read_message`) is a length of eight bytes, big-endian, and
that many bytes. A request is HLO text, a serialised HloModuleProto after a zero byte, or the base64
body of a Pallas kernel after a byte of one. An answer is JSON: name and text of the module, or the
work of the kernel, or an error under `error` or `missing`. The text is checked by jaxlib and always
printed in the same form, for `module_text.py`. Reading instruction by instruction through jaxlib's
objects took nine seconds for 50 MB instead of seven.
"""

import json
import os
import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO

MAX_MEMORY = 2 * 2**30
"""Address space, in bytes, that the process may use beyond that of imported jaxlib."""

KERNEL_PREFIX = b"\1"
"""First byte of a request that holds the body of a kernel."""


def pack_message(data: bytes) -> bytes:
    """Return the bytes with their length in front."""
    return len(data).to_bytes(8, "big") + data


def read_message(stream: BinaryIO) -> bytes | None:
    """Return the next message of the stream; None if the stream ends before it does."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "big")) if len(head) == 8 else b""
    return data if len(head) == 8 and len(data) == int.from_bytes(head, "big") else None


def parse_module(hlo: Any, data: bytes) -> dict[str, str]:
    """Return name and text of the requested module. hlo: jaxlib's module of that name."""
    if data.startswith(b"\0"):
        proto = hlo.HloModule.from_serialized_hlo_module_proto(data[1:])
        module = hlo.hlo_module_from_text(proto.to_string())
    else:
        module = hlo.hlo_module_from_text(data.decode("utf-8", "replace"))
    printed = hlo.HloPrintOptions()
    printed.print_operand_shape = printed.print_program_shape = False
    return {"name": module.name, "text": module.to_string(printed)}


def _answer(data: bytes) -> dict[str, Any]:
    return _read_kernel(data[1:]) if data.startswith(KERNEL_PREFIX) else _read_module(data)


def _read_kernel(body: bytes) -> dict[str, Any]:
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _tpu_ext
    except ImportError as error:
        return {"missing": str(error)}
    _limit_memory()
    try:
        dialects, values = (_tpu_ext, _jax_mlir_ext), _beside("mosaic_values")
        found: dict[str, Any] = _beside("mosaic").kernel_work(ir, dialects, values, body)
    except Exception as error:
        return {"error": str(error) or type(error).__name__}
    return found


@lru_cache(maxsize=2)
def _beside(name: str) -> Any:
    """Load a part of the kernel reader by its path: the child need not find the package."""
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
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
    _limit_memory()
    try:
        return parse_module(hlo, data)
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _limit_memory() -> None:
    """Forbid core dumps and more memory than `MAX_MEMORY`, where the system supports limits."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY:
            with open("/proc/self/statm") as file:
                taken = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + MAX_MEMORY, hard))
    except (ImportError, OSError, ValueError):
        return


def main() -> None:
    """Answer requests one by one; other output goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := read_message(sys.stdin.buffer)) is not None:
        answers.write(pack_message(json.dumps(_answer(data)).encode()))
        answers.flush()


if __name__ == "__main__":
    main()
