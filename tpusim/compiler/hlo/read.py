"""Reading HLO: the text that `tpusim.compiler.hlo.parser` returns, checked, as an `HloModule`."""

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic

from tpusim.base.errors import FileError, blame
from tpusim.compiler.hlo.attributes import call_target, kernel_config
from tpusim.compiler.hlo.check import (
    UNSCHEDULED,
    check_calls,
    check_platform,
    check_shapes,
    topological_order,
)
from tpusim.compiler.hlo.hlo_files import (
    assigned_devices,
    decompress,
    parser_request,
    split_header,
)
from tpusim.compiler.hlo.module import (
    Computation,
    HloModule,
    Instruction,
    KernelBody,
    KernelMatmuls,
    TupleIndex,
)
from tpusim.compiler.hlo.module_text import read_frames, split_module
from tpusim.compiler.hlo.opcodes import KERNEL_TARGETS
from tpusim.compiler.hlo.parser_process import HloParser
from tpusim.compiler.hlo.shapes import integers


def read_module(
    data: bytes, what: str = "HLO", parser: HloParser | None = None, *, any_compiler: bool = False
) -> HloModule:
    """Return the module of HLO text, a serialised HloModuleProto or an HloProto, gzipped or not.

    what: the start of error messages, such as the path.
    parser: a running one, to read many modules in one child process.
    any_compiler: accept HLO that the TPU compiler did not make.

    Raise FileError for data that is not HLO, contradicts itself, or is not from the TPU compiler.
    """
    with blame(what):
        request = parser_request(split_header(decompress(data))[1])
        with HloParser() if parser is None else nullcontext(parser) as running:
            module = build_module(**running.parse(request))
            bodies = read_kernel_bodies(module.computations.values(), running)
        if not any_compiler:
            check_platform(module)
        replicas, partitions = assigned_devices(request)
        if replicas * partitions > module.devices:
            module = replace(module, replicas=replicas, devices=replicas * partitions)
        return replace(module, bodies=bodies)


def build_module(name: str, text: str) -> HloModule:
    """Return the module of the parser's text. Raise FileError if it is inconsistent."""
    head, frames, entry, computations = split_module(text)
    made = [topological_order(computation) for computation in computations]
    check_calls(made)
    check_shapes(made)
    scheduled = "is_scheduled=true" in head
    module = HloModule(
        name=name,
        computations={computation.name: computation for computation in made},
        entry=entry,
        scheduled=scheduled,
        devices=_number("num_partitions", head) * _number("replica_count", head),
        replicas=_number("replica_count", head),
        frames=read_frames(frames),
        aliases=_aliases(head),
        notes=() if scheduled else (UNSCHEDULED,),
    )
    if module.entry not in module.computations:
        raise FileError("no computation is the entry; give the whole text of one module")
    return module


def _number(key: str, head: str) -> int:
    found = re.search(rf"{key}=(\d+)", head)
    return int(found[1]) if found else 1


_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}, (?:may|must)-alias\)")


def _aliases(head: str) -> dict[TupleIndex, tuple[int, TupleIndex]]:
    """Return the parameter, and the index in it, whose memory each output reuses."""
    return {
        integers(output): (int(parameter), integers(inner))
        for output, parameter, inner in _ALIAS.findall(head)
    }


ALL_KERNELS_SECONDS, KERNEL_SECONDS = 20.0, 5.0
"""Time limits for the bodies of a module together, and for one; one takes milliseconds."""


def encoded_body(instruction: Instruction) -> str:
    """Return the base64 body of a kernel whose author gives no estimate, or an empty string."""
    if instruction.opcode != "custom-call" or call_target(instruction) not in KERNEL_TARGETS:
        return ""
    config = kernel_config(instruction)
    found = "" if config.get("cost_estimate") else config.get("body")
    return found if isinstance(found, str) else ""


def read_kernel_bodies(
    computations: Iterable[Computation], parser: HloParser
) -> dict[str, KernelBody]:
    """Return the work of these computations' kernels, by their encoded bodies.

    A body that cannot be read is left out: its kernel is then of unknown work.
    """
    texts = {
        encoded_body(each) for computation in computations for each in computation.instructions
    }
    found: dict[str, KernelBody] = {}
    until = monotonic() + ALL_KERNELS_SECONDS
    for text in sorted(texts - {""}):
        left = until - monotonic()
        answer = parser.parse_kernel(text, min(left, KERNEL_SECONDS)) if left > 0 else None
        if answer is not None:
            matmuls = tuple(KernelMatmuls(*each) for each in answer.pop("matmuls"))
            found[text] = KernelBody(matmuls, moved=tuple(answer.pop("moved")), **answer)
    return found
