"""HLO as modules: what `tpusim.xla.parser` found, checked and put into classes."""

import re
from dataclasses import replace

from tpusim.errors import FileError, blame
from tpusim.xla.bodies import bodies
from tpusim.xla.check import UNSCHEDULED, check_calls, check_platform, check_shapes, in_order
from tpusim.xla.child import Parser
from tpusim.xla.files import request, unzipped
from tpusim.xla.frames import frames_of
from tpusim.xla.header import split_header
from tpusim.xla.module import Module, Place
from tpusim.xla.text import taken_apart


def read_module(
    data: bytes, what: str = "HLO", parser: Parser | None = None, *, any_compiler: bool = False
) -> Module:
    """The module of HLO text, or of a serialised HloModuleProto or HloProto, gzipped or not.

    what: begins the sentences of errors, such as the path. parser: an open one, for many modules in
    one child process. any_compiler: also takes what the TPU compiler did not make. Raises FileError
    for what is no HLO, contradicts itself, or was not made by the TPU compiler.
    """
    with blame(what):
        asked = request(split_header(unzipped(data))[1])
        if parser is None:
            with Parser() as own:
                module = _read(asked, own)
        else:
            module = _read(asked, parser)
        if not any_compiler:
            check_platform(module)
        return module


def _read(asked: bytes, parser: Parser) -> Module:
    module = module_from(**parser.parse(asked))
    return replace(module, bodies=bodies(module.computations.values(), parser))


def module_from(name: str, text: str) -> Module:
    """The module of that name, of the text that the parser printed. Raises FileError."""
    head, frames, entry, computations = taken_apart(text)
    made = [in_order(computation) for computation in computations]
    check_calls(made)
    check_shapes(made)
    scheduled = "is_scheduled=true" in head
    module = Module(
        name=name,
        computations={computation.name: computation for computation in made},
        entry=entry,
        scheduled=scheduled,
        devices=_number("num_partitions", head) * _number("replica_count", head),
        replicas=_number("replica_count", head),
        frames=frames_of(frames),
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


def _aliases(head: str) -> dict[Place, tuple[int, Place]]:
    """The parameter, and the place in it, whose memory each output takes."""
    return {
        _place(output): (int(parameter), _place(inner))
        for output, parameter, inner in _ALIAS.findall(head)
    }


def _place(text: str) -> Place:
    return tuple(int(part) for part in text.split(",") if part.strip())
