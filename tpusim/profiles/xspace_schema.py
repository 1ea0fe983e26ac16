"""The messages of an XSpace, as far as they are read.

Field numbers are those of XLA's `xplane.proto` (openxla/xla, `third_party/tsl/tsl/profiler/
protobuf/xplane.proto`). Planes, lines and events stay bytes until they are asked for, as a message
takes several times the memory of its bytes; names are bytes as well, so that one that is not UTF-8
breaks nothing.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES = {
    "Space": {"planes": (1, "bytes*")},
    "Plane": {
        "name": (2, "bytes"), "lines": (3, "bytes*"), "events": (4, "EventEntry*"),
        "statistics": (5, "StatisticEntry*"), "stats": (6, "Stat*"),
    },
    "EventEntry": {"key": (1, "int64"), "value": (2, "EventKind")},
    "EventKind": {
        "name": (2, "bytes"), "display_name": (4, "bytes"), "stats": (5, "Stat*"),
    },
    "StatisticEntry": {"key": (1, "int64"), "value": (2, "Statistic")},
    "Statistic": {"name": (2, "bytes")},
    "Stat": {
        "kind": (1, "int64"), "double": (2, "double"), "uint64": (3, "uint64"),
        "int64": (4, "int64"), "text": (5, "bytes"), "data": (6, "bytes"), "ref": (7, "uint64"),
    },
    "Line": {
        "name": (2, "bytes"), "timestamp_ns": (3, "int64"), "events": (4, "bytes*"),
    },
    "Event": {
        "kind": (1, "int64"), "offset_ps": (2, "int64"), "duration_ps": (3, "int64"),
        "stats": (4, "Stat*"),
    },
}  # fmt: skip
"""Messages, with the number and the type of each field; `*` marks a repeated one."""

_PACKAGE = "tpusim.profiles"


def _message_classes() -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tpusim/profiles/xspace.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in fields.items():
            repeated, scalar = kind.endswith("*"), kind.rstrip("*")
            one = message.field.add(name=key, number=number)
            one.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if scalar in _MESSAGES:
                one.type, one.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{scalar}"
            else:
                one.type = getattr(field_type, f"TYPE_{scalar.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(found[name]) for name in _MESSAGES}


_CLASSES = _message_classes()
Space, Plane, Line, Event = (_CLASSES[name] for name in ("Space", "Plane", "Line", "Event"))
