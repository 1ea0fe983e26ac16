"""A compiled program: the HLO that the TPU compiler made, and what it does not say itself."""

import gzip
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Self, TypeAlias

from tpusim.errors import FileError, PlanError
from tpusim.hardware import Slice, parse_slice
from tpusim.textfile import written_whole
from tpusim.units import format_bytes, format_rate, format_seconds
from tpusim.xla.files import read_file
from tpusim.xla.header import header_line

TESTED = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
"""Versions that the tests compile with."""

DeviceId: TypeAlias = tuple[int, int, int, int, int]
"""Where a device is: slice, x, y, z, core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes of HBM of one device, as the compiler assigned them.

    total = arguments + outputs + heap. outputs: those that share no argument's place. aliased:
    outputs that do. heap: all else, which lives within the step. host: what is offloaded to it.
    exact: of the compiler's buffer assignment; else of its summary, which is rougher.
    """

    arguments: int
    outputs: int
    aliased: int
    heap: int
    total: int
    host: int = 0
    exact: bool = True

    def __str__(self) -> str:
        parts = (f"{n} {format_bytes(getattr(self, n))}" for n in ("arguments", "outputs", "heap"))
        host = f", and {format_bytes(self.host)} on the host" if self.host else ""
        rough = "" if self.exact else ", by the compiler's summary"
        return f"{format_bytes(self.total)} ({', '.join(parts)}{rough}){host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What `compile` makes, and `load` reads; what a file does not say is None or empty.

    data: HLO text, scheduled if the TPU compiler made it, or a serialised HloModuleProto.
    devices: where each id of the HLO is, in the order of the ids. mesh: axes and their sizes.
    versions: of jax, jaxlib and libtpu. flags: the compiler's that were set, as `--name=value`.
    seconds: what compiling took. model_flops: FLOPs of a step of all devices, without what is
    recomputed. from_cache: whether an earlier call compiled it.
    """

    name: str
    data: bytes
    slice: Slice | None = None
    devices: tuple[DeviceId, ...] | None = None
    mesh: tuple[tuple[str, int], ...] | None = None
    memory: MemoryReport | None = None
    versions: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    seconds: float | None = None
    model_flops: float | None = None
    from_cache: bool = False

    @property
    def hlo(self) -> str:
        """The HLO text; empty for a proto."""
        return "" if b"\0" in self.data[:1024] else self.data.decode("utf-8", "replace")

    def save(self, path: str | Path) -> None:
        """Write the HLO with one line of comment before it, which `load` reads; gzipped if .gz.

        Raises FileError where it cannot be written.
        """
        facts = header_line(self.facts()) if self.hlo else ""
        data = facts.encode() + self.data.lstrip(b"\n")
        path = Path(path)
        packed = gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data
        try:
            with written_whole(path) as beside:
                beside.write_bytes(packed)
        except OSError as error:
            raise FileError(f"{path}: cannot be written: {error.strerror}") from error

    def facts(self) -> dict[str, Any]:
        """All but the HLO, as JSON holds it."""
        return {
            "name": self.name,
            "slice": None if self.slice is None else _spelt(self.slice),
            "mesh": None if self.mesh is None else dict(self.mesh),
            "devices": None if self.devices is None else [list(place) for place in self.devices],
            "memory": None if self.memory is None else asdict(self.memory),
            "versions": dict(self.versions),
            "flags": list(self.flags),
            "seconds": self.seconds,
            "model_flops": self.model_flops,
        }

    @classmethod
    def of(cls, data: bytes, facts: Mapping[str, Any], name: str = "") -> Self:
        """The program of HLO and what is known of it.

        Raises ValueError, TypeError, LookupError or TpusimError for facts that are none.
        """
        devices, mesh, memory = (facts.get(key) for key in ("devices", "mesh", "memory"))
        return cls(
            name=str(facts.get("name") or name),
            data=data,
            slice=None if facts.get("slice") is None else _slice(facts["slice"]),
            devices=None if devices is None else tuple(_place(place) for place in devices),
            mesh=None if mesh is None else tuple((str(a), int(n)) for a, n in mesh.items()),
            memory=None if memory is None else _memory(memory),
            versions=tuple((str(k), str(v)) for k, v in facts.get("versions", {}).items()),
            flags=tuple(str(flag) for flag in facts.get("flags", ())),
            seconds=_number(facts.get("seconds")),
            model_flops=_number(facts.get("model_flops")),
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        pod = self.slice
        where = f" for {pod} ({pod.devices} devices)" if pod else ""
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh or ())
        lines = [f"{self.name}{where}" + (f", mesh {axes}" if axes else "")]
        made = ", ".join(f"{name} {version}" for name, version in self.versions)
        if self.seconds is not None:
            cached = "; now read from the cache" if self.from_cache else ""
            lines.append(f"  compiled in {format_seconds(self.seconds)} ({made}){cached}")
        if self.flags:
            lines.append(f"  flags        {' '.join(self.flags)}")
        other = [f"{k} {TESTED[k]}" for k, v in self.versions if TESTED.get(k, v) != v]
        if other:
            lines.append(f"  note         what is tested is {', '.join(other)}")
        lines.append(f"  HLO          {format_bytes(len(self.data))}")
        if self.memory is not None:
            lines.append(f"  HBM a device {self.memory}")
        if self.model_flops is not None:
            lines.append(f"  model FLOPs  {format_rate(self.model_flops, 'FLOP')} a step")
        return lines


def load(path: str | Path) -> Compiled:
    """The program of a file: HLO text or a serialised HloModuleProto, gzipped or not.

    What `Compiled.save` wrote comes back whole; of other files only the HLO is known. It is read
    here, not parsed. Raises FileError for a file that cannot be read.
    """
    path = Path(path)
    facts, data = read_file(path)
    name = path.name.removesuffix(".gz").removesuffix(".hlo")
    try:
        return Compiled.of(data, facts or {}, name)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise FileError(
            f"{path}: line 1 is not what tpusim writes there ({error}); save the file again, or "
            "delete the line and give the slice yourself"
        ) from error


def check_flops(model_flops: object) -> None:
    """Raise PlanError for FLOPs of a step that cannot be."""
    if not isinstance(model_flops, (int, float)) or not 0 < model_flops < inf:
        raise PlanError(f"model_flops is {model_flops!r}; write the FLOPs of a step, above 0")


def _spelt(pod: Slice) -> str:
    """The slice as it prints, of the chip as its file has it."""
    return str(Slice(pod.chip.generation, str(pod.topology), pod.num_slices))


def _slice(spelt: Any) -> Slice:
    """The slice of a header; earlier ones list a slice and how many there are of it."""
    return parse_slice(spelt if isinstance(spelt, str) else " x ".join(map(str, spelt)))


def _place(place: Any) -> DeviceId:
    number, x, y, z, core = (int(part) for part in place)
    return number, x, y, z, core


def _memory(facts: Mapping[str, Any]) -> MemoryReport:
    known = {field.name for field in fields(MemoryReport)}
    return MemoryReport(**{key: value for key, value in facts.items() if key in known})


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
