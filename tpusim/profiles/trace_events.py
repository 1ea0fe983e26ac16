"""Reading a trace in Chrome's format (`*.trace.json.gz`), which profilers write beside an XSpace.

It has the events of devices, without programs. It is read event by event: as Python objects, the
largest traces would take ten times their size.
"""

import codecs
import json
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from typing import Any

from tpusim.base.errors import FileError
from tpusim.base.units import format_bytes
from tpusim.profiles.recorded import Events, Recorded, about_of
from tpusim.profiles.xspace import DURATION, OFFSET

PS = 1e6
"""Picoseconds of a microsecond, the unit of a trace."""

BROKEN = "broken JSON; copy the file again, or profile the step again"
NONE = "JSON without `traceEvents`; give the trace of a profile, `*.trace.json.gz`"
NO_HLO = (
    "a trace has no HLO, so each operation is known by its line alone; the *.xplane.pb beside it "
    "has the programs"
)
LIMIT = 1_000_000
"""Events at which the profiler cuts a trace."""

CHUNK = 2**20
LONGEST_VALUE = 2**25
"""Characters of one event, at most."""

LARGEST = 2**33
"""Bytes of a trace, unzipped, at most."""

_Event = Mapping[str, Any]


def read_trace(file: BufferedIOBase) -> Recorded:
    """Return what a trace holds. Raise FileError for data that is none."""
    recorded = Recorded()
    planes: dict[Any, str] = {}
    names: dict[Any, str] = {}
    lines: dict[Any, Events | None] = {}
    known: dict[Any, int] = {}
    count = 0
    for event in _JsonText(file).events():
        count += 1
        try:
            if event.get("ph") == "X":
                if (events := lines.get((event["pid"], event["tid"]))) is not None:
                    _add(event, events, known)
            elif event.get("name") == "process_name":
                plane = planes[event["pid"]] = str(event["args"]["name"])
                recorded.add_plane(plane)
                for key in (key for key in names if key[0] == event["pid"]):
                    lines[key] = recorded.events(plane, names[key])
            elif event.get("name") == "thread_name":
                key = event["pid"], event["tid"]
                names[key] = str(event["args"]["name"])
                lines[key] = recorded.events(planes.get(event["pid"], ""), names[key])
        except (KeyError, ValueError, TypeError, OverflowError, AttributeError):
            continue  # no names, or no times
    cut = (f"the profiler cut the trace at {LIMIT:,} events",) if count >= LIMIT else ()
    recorded.notes = (*cut, NO_HLO)
    return recorded


def _add(event: _Event, events: Events, known: dict[Any, int]) -> None:
    facts = event.get("args") or {}
    start = int(facts[OFFSET]) if OFFSET in facts else round(PS * float(event["ts"]))
    lasts = int(facts[DURATION]) if DURATION in facts else round(PS * float(event["dur"]))
    name = str(event.get("name", ""))
    key = id(events), name, facts.get("long_name"), facts.get("tf_op")
    if (kind := known.get(key)) is None:
        kind = known[key] = events.number(about_of(name, facts))
    events.add(start, lasts, kind)


class _JsonText:
    """JSON of which only a window is in memory."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._text, self._at = file, "", 0
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._left = LARGEST
        self._scan = json.JSONDecoder().raw_decode

    def events(self) -> Iterator[_Event]:
        """Yield the objects of the array `traceEvents`, or of a file that is this array alone."""
        if not self._found():
            raise FileError(NONE)
        while self._sign() != "]":
            event = self._value()
            if isinstance(event, dict):
                yield event
            if self._sign(",]") == ",":
                self._at += 1
        while self._more(CHUNK):  # to the end, where gzip has its checksum
            self._text = ""

    def _found(self) -> bool:
        """Go to the first event, and return True if there is an array of them."""
        if self._sign("{[") == "{":
            key = ""
            while key != "traceEvents":
                self._at += 1
                if self._sign('"}') == "}":
                    return False
                key = self._value()
                self._sign(":")
                self._at += 1
                if key != "traceEvents":
                    self._value()
                    if self._sign(",}") == "}":
                        return False
        if self._sign() != "[":
            return False
        self._at += 1
        return True

    def _sign(self, wanted: str = "") -> str:
        """Return the next character that is no space; it has to be one of `wanted`, if any is."""
        while True:
            while self._at < len(self._text):
                if not (sign := self._text[self._at]).isspace():
                    if wanted and sign not in wanted:
                        raise FileError(BROKEN)
                    return sign
                self._at += 1
            if not self._more(CHUNK):
                raise FileError(BROKEN)

    def _value(self) -> Any:
        """Return the next value; one that is not complete is read on, twice as far each time."""
        size = CHUNK
        self._sign()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                length = end - self._at
                if end < len(self._text) or not self._more(CHUNK):
                    self._at += length
                    return value
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > LONGEST_VALUE or not self._more(size):
                    raise FileError(BROKEN) from error
                size *= 2

    def _more(self, size: int) -> bool:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise FileError(f"more than {format_bytes(LARGEST)} unzipped; profile fewer steps")
        text = self._utf8.decode(data, final=not data)
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(data)
