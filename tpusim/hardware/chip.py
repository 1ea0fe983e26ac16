"""A chip, and the part of it that JAX calls a device. SI floats, counts as ints."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tpusim.errors import HardwareError, nearest
from tpusim.hardware.fields import (
    BANDWIDTH,
    BYTES,
    COUNTED,
    EXPONENT,
    FLOPS,
    SECONDS,
    SHAPE,
    SHARED,
    YEAR,
    check_fields,
    read_value,
    units_of,
)
from tpusim.units import parse

DTYPES = ("bf16", "f32", "int8", "fp8", "int4")


@dataclass(frozen=True, slots=True)
class Rates(Mapping[str, float]):
    """Peak FLOP/s by dtype: a mapping that is frozen, hashable and picklable."""

    pairs: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, rates: Mapping[str, float]) -> Self:
        """The rates of a plain mapping."""
        return cls(tuple(rates.items()))

    def __getitem__(self, dtype: str) -> float:
        for name, rate in self.pairs:
            if name == dtype:
                return rate
        raise KeyError(dtype)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The constants of the cost model: one set a chip, none a run or a model.

    ici_efficiency, hbm_efficiency: the share of the nominal bandwidth that long transfers reach.
    hop_latency: seconds from a chip to its neighbour.
    collective_launch: seconds before the first byte of a collective moves.
    dcn_latency: seconds before the first byte of a transfer between slices arrives.
    op_launch: seconds that a product or a kernel takes on top of its work.
    vector_launch: seconds that an element-wise group takes on top of its work.
    matmul_efficiency: the share of peak that large matmuls reach.
    matmul_overlap: exponent p of (MXU^p + memory^p)^(1/p).
    attention_efficiency_forward, attention_efficiency_backward: the share of peak that a fused
        attention kernel reaches on the blocks that it visits, long sequences.
    vector_efficiency: the share of `vpu_flops` that fused element-wise code reaches.
    slice_jitter: standard deviation of one slice's step, as a share of its mean.
    dispatch: seconds that the host needs to start a step on its devices; the next step is started
        while one runs, so it is the least that a step takes.
    """

    ici_efficiency: float = field(metadata=SHARED)
    hbm_efficiency: float = field(metadata=SHARED)
    hop_latency: float = field(metadata=SECONDS)
    collective_launch: float = field(metadata=SECONDS)
    dcn_latency: float = field(metadata=SECONDS)
    op_launch: float = field(metadata=SECONDS)
    vector_launch: float = field(metadata=SECONDS)
    matmul_efficiency: float = field(metadata=SHARED)
    matmul_overlap: float = field(metadata={"unit": EXPONENT})
    attention_efficiency_forward: float = field(metadata=SHARED)
    attention_efficiency_backward: float = field(metadata=SHARED)
    vector_efficiency: float = field(metadata=SHARED)
    slice_jitter: float = field(metadata=SHARED)
    dispatch: float = field(metadata=SECONDS)

    def __post_init__(self) -> None:
        check_fields(self, "costs")
        if self.matmul_overlap < 1:
            raise HardwareError(
                f"costs: matmul_overlap is {self.matmul_overlap}, and below 1 two resources would "
                "take longer than one after the other; write 1 (no overlap) or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What JAX calls a device: a whole chip, or half of one on v2, v3 and 7x. Its share of all."""

    name: str
    flops: Rates
    vpu_flops: float
    hbm_bytes: float
    hbm_usable_bytes: float
    hbm_bandwidth: float
    vmem_bytes: float
    cmem_bytes: float
    mxus: int
    mxu_side: int
    clock: float
    costs: Costs
    mxu_side_fp8: int | None = None

    def side(self, dtype: str) -> int:
        """The array's side for operands of `dtype`."""
        return self.mxu_side_fp8 or self.mxu_side if dtype == "fp8" else self.mxu_side

    def peak(self, dtype: str) -> float:
        """FLOP/s of the array for `dtype`; `HardwareError` where the chip has no such matmul."""
        if dtype not in self.flops:
            raise HardwareError(
                f"{self.name} has no {dtype} matmul; it multiplies {', '.join(self.flops)}"
            )
        return self.flops[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One TPU chip; all numbers are per chip unless said.

    generation: whose topology rules it obeys (`v4`, ..., `7x`).
    devices: JAX devices on the chip.
    flops: peak FLOP/s by dtype; a dtype that is absent has no matmul. f32 is JAX's default
        precision, one bf16 pass, so it has the bf16 peak.
    mxu_side, mxu_side_fp8: rows and columns of a systolic array; None where fp8's are the same.
    hbm_usable_bytes: what the compiler lets a program use.
    ici_bandwidth: nominal B/s of one link, one way. Two links to a torus dimension.
    die_to_die_bandwidth: B/s between the chip's two devices, one way; 0 where there is one.
    dcn_bandwidth, pcie_bandwidth: B/s out of the chip, one way.
    host_chips: chips that share a host; host_bytes: the host's memory.
    power: watts, mean in use; price: USD an hour on demand. None where nobody says.
    """

    name: str
    generation: str
    year: int = field(metadata={"unit": YEAR})
    devices: int = field(metadata=COUNTED)
    tensor_cores: int = field(metadata=COUNTED)
    sparse_cores: int = field(metadata=COUNTED)
    mxus: int = field(metadata=COUNTED)
    mxu_side: int = field(metadata=COUNTED)
    clock: float = field(metadata={"unit": "Hz"})
    flops: Rates = field(metadata=FLOPS)
    vpu_flops: float = field(metadata=FLOPS)
    hbm_bytes: float = field(metadata=BYTES)
    hbm_usable_bytes: float = field(metadata=BYTES)
    hbm_bandwidth: float = field(metadata=BANDWIDTH)
    vmem_bytes: float = field(metadata=BYTES)
    cmem_bytes: float = field(metadata=BYTES)
    ici_dimensions: int = field(metadata=COUNTED)
    ici_bandwidth: float = field(metadata=BANDWIDTH)
    die_to_die_bandwidth: float = field(metadata=BANDWIDTH)
    pod_shape: tuple[int, ...] = field(metadata={"unit": SHAPE})
    dcn_bandwidth: float = field(metadata=BANDWIDTH)
    pcie_bandwidth: float = field(metadata=BANDWIDTH)
    host_chips: int = field(metadata=COUNTED)
    host_bytes: float | None = field(default=None, metadata=BYTES)
    mxu_side_fp8: int | None = field(default=None, metadata=COUNTED)
    power: float | None = field(default=None, metadata={"unit": "W"})
    price: float | None = field(default=None, metadata={"unit": "USD/h"})
    costs: Costs

    def __post_init__(self) -> None:
        if not isinstance(self.flops, Rates):
            object.__setattr__(self, "flops", Rates.of(self.flops))
        check_fields(self, self.name)
        if self.mxus % self.devices:
            raise HardwareError(
                f"{self.name}: {self.mxus} MXUs cannot be shared by {self.devices} devices; "
                f"write a multiple of {self.devices}"
            )

    def replace(self, **changes: Any) -> "Chip":
        """The chip with other numbers: a what-if. Constants of `costs` are named directly.

        A quantity may be text with its unit, or a plain number in SI; `flops` changes the dtypes
        that it names.

        Raises `HardwareError` for a field that does not exist or a value that cannot be, and
        `UnitError` for a quantity that cannot be read.

        >>> from tpusim.hardware import load_chip
        >>> load_chip("v4").replace(hbm_bandwidth="2.4 TB/s", hop_latency=1e-6).hbm_bandwidth
        2400000000000.0
        """
        known = CHIP_UNITS | COST_UNITS | {"name": "", "generation": "", "costs": ""}
        for name in changes:
            if name not in known:
                raise HardwareError(f"a chip has no field {name!r}; {nearest(name, known)}")
        if "flops" in changes:
            changes["flops"] = {**self.flops, **_rates(changes["flops"])}
        values = {
            name: read_value(change, known[name], name) if isinstance(change, str) else change
            for name, change in changes.items()
        }
        inner = {name: values.pop(name) for name in COST_UNITS if name in values}
        if inner:
            costs = values.get("costs", self.costs)
            values["costs"] = dataclasses.replace(costs, **inner)
        return dataclasses.replace(self, **values)

    @property
    def device(self) -> Device:
        """The share of one JAX device: the chip's, divided by `devices`."""
        part = self.devices
        return Device(
            name=self.name,
            flops=Rates(tuple((dtype, rate / part) for dtype, rate in self.flops.items())),
            vpu_flops=self.vpu_flops / part,
            hbm_bytes=self.hbm_bytes / part,
            hbm_usable_bytes=self.hbm_usable_bytes / part,
            hbm_bandwidth=self.hbm_bandwidth / part,
            vmem_bytes=self.vmem_bytes / part,
            cmem_bytes=self.cmem_bytes / part,
            mxus=self.mxus // part,
            mxu_side=self.mxu_side,
            clock=self.clock,
            costs=self.costs,
            mxu_side_fp8=self.mxu_side_fp8,
        )


CHIP_UNITS = units_of(Chip)
COST_UNITS = units_of(Costs)


def _rates(changes: Any) -> dict[str, Any]:
    """The changed peaks: dtype -> FLOP/s."""
    if not isinstance(changes, Mapping):
        raise HardwareError(f"flops is {changes!r}; write peaks by dtype, as in {{'bf16': 275e12}}")
    for dtype in changes:
        if dtype not in DTYPES:
            raise HardwareError(f"flops: unknown dtype {dtype!r}; {nearest(str(dtype), DTYPES)}")
    return {
        dtype: parse(rate, "FLOP/s", f"flops.{dtype}") if isinstance(rate, str) else rate
        for dtype, rate in changes.items()
    }
