"""The places in the user's code that a module's tables of frames name."""

import re
from collections.abc import Mapping

from tpusim.xla.module import Frame, Frames

_PAIR = re.compile(r"(\w+)=(\d+)")


def frames_of(text: str) -> Frames:
    """The stacks of a module's tables of files, functions, locations and frames."""
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number.isdigit():
            current[int(number)] = rest
        elif line.strip():
            current = tables.setdefault(line.strip(), {})
    files, functions = tables.get("FileNames", {}), tables.get("FunctionNames", {})
    places = {}
    for place, rest in tables.get("FileLocations", {}).items():
        keys = {key: int(value) for key, value in _PAIR.findall(rest)}
        places[place] = Frame(
            files.get(keys.get("file_name_id", 0), '""').strip('"'),
            keys.get("line", 0),
            functions.get(keys.get("function_name_id", 0), '""').strip('"'),
        )
    links = {
        number: {key: int(value) for key, value in _PAIR.findall(rest)}
        for number, rest in tables.get("StackFrames", {}).items()
    }
    return {number: _stack(number, links, places) for number in links}


def _stack(
    number: int, links: Mapping[int, Mapping[str, int]], places: Mapping[int, Frame]
) -> tuple[Frame, ...]:
    found: list[Frame] = []
    seen: set[int] = set()
    while number in links and number not in seen:
        seen.add(number)
        place = places.get(links[number].get("file_location_id", 0))
        if place is not None:
            found.append(place)
        number = links[number].get("parent_frame_id", 1) - 1
    return tuple(found)
