"""A chip, and the part of it that JAX calls a device. SI units; counts are ints."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tpusim.base.errors import HardwareError, nearest
from tpusim.base.html_text import html_table
from tpusim.base.units import format_bytes, format_rate, parse
from tpusim.hardware.calibration import Calibration, calibrated_costs
from tpusim.hardware.chip_fields import (
    BANDWIDTH,
    BYTES,
    COUNTED,
    EXPONENT,
    FACTOR,
    FLOPS,
    OR_ZERO,
    SECONDS,
    SHAPE,
    SHARED,
    YEAR,
    check_fields,
    read_value,
    units_of,
)
from tpusim.hardware.compiler_rules import CompilerRules
from tpusim.hardware.slice_rules import SliceRules

LEAST_CLOCK = 1e6
"""Hz; a number below it is of another unit."""

DTYPES = ("bf16", "f32", "int8", "fp8", "int4")

_SHARED_BY_DEVICES = (
    *("vpu_flops", "hbm_bytes", "hbm_usable_bytes", "hbm_bandwidth", "vmem_bytes", "cmem_bytes"),
)


@dataclass(frozen=True, slots=True)
class PeakRates(Mapping[str, float]):
    """Peak FLOP/s by dtype: a mapping that is frozen, hashable and picklable."""

    pairs: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, rates: Mapping[str, float]) -> Self:
        """Return the rates of a plain mapping, dtype -> FLOP/s."""
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
class CostConstants:
    """The constants of the cost model: one set per chip, none for a run or a model.

    ici_efficiency, hbm_efficiency: share of the nominal bandwidth that long transfers reach, those
        of HBM as copies, which write as much as they read.
    hbm_read: share that reads alone, or writes alone, reach; None if it is that of copies.
    hop_latency: seconds from a chip to its neighbour.
    collective_launch: seconds before the first byte of a collective moves.
    dcn_latency: seconds before the first byte of a transfer between slices arrives.
    op_launch: seconds that a matmul or a kernel takes on top of its work.
    vector_launch: seconds that an element-wise group takes on top of its work.
    matmul_efficiency: share of peak that large matmuls reach, alone on the chip.
    matmul_in_step: share of that rate that matmuls keep inside a training step.
    matmul_overlap: exponent p of (MXU^p + memory^p)^(1/p).
    matmul_overlap_in_step: the same inside a step, where operands are fetched ahead; None if alike.
    epilogue_overlap: exponent of the same sum of the array and of what is fused into a matmul.
    kernel_step: seconds that a step of a Pallas kernel's grid takes on top of its arithmetic.
    attention_efficiency_forward, attention_efficiency_backward: share that fused attention kernels
        reach of the rate that their matmuls and vector operations allow.
    vector_efficiency: share of `vpu_flops` that fused element-wise code reaches.
    scatter_element: seconds to add one element to an array in HBM by its index.
    row_message: seconds of a core for each row of tokens that a kernel sends to another device in a
        message of its own.
    gather_efficiency: share of the bandwidth of copies at which rows of an array in HBM are picked
        by their index and written.
    chip_jitter: standard deviation of a chip's seconds, as a share; the slowest sets the pace.
    slice_jitter: standard deviation of one slice's step, as a share of its mean.
    dispatch: seconds that the host needs to start a step on its devices. The next step is started
        while one runs, so it is the least that a step takes.
    turnaround: seconds from the end of a step to the start of the next in a loop whose host reads
        the result of each step before it starts the next.
    calibrated_times: what a calibration multiplies the seconds of attention's kernels and of
        collectives within a slice by, by their kind; 1 for those that are missing.

    Of chips whose single operations were measured; None on others:
    matmul_read: share of HBM's bandwidth at which operands of matmuls arrive, if it is not
        `hbm_efficiency`.
    group_efficiency: share of `vpu_flops` that an element-wise group of a compiled program reaches.
    group_fill: seconds for which, at most, memory and core of an element-wise group do not overlap.
    chip_launch: seconds that a group of a compiled program takes on top of its work, if it touches
        arrays on the chip only; with HBM `vector_launch` comes on top.
    lane_crossing: seconds of a memory tile in the cross-lane unit.
    die_launch: seconds before the first byte of a collective between the devices of a chip moves,
        if it is not `collective_launch`.
    """

    ici_efficiency: float = field(metadata=SHARED)
    hbm_efficiency: float = field(metadata=SHARED)
    hop_latency: float = field(metadata=SECONDS)
    collective_launch: float = field(metadata=SECONDS)
    dcn_latency: float = field(metadata=SECONDS)
    op_launch: float = field(metadata=SECONDS)
    vector_launch: float = field(metadata=SECONDS)
    matmul_efficiency: float = field(metadata=SHARED)
    matmul_in_step: float = field(metadata=SHARED)
    matmul_overlap: float = field(metadata={"unit": EXPONENT})
    epilogue_overlap: float = field(metadata={"unit": EXPONENT})
    kernel_step: float = field(metadata=SECONDS)
    attention_efficiency_forward: float = field(metadata={"unit": FACTOR})
    attention_efficiency_backward: float = field(metadata={"unit": FACTOR})
    vector_efficiency: float = field(metadata=SHARED)
    scatter_element: float = field(metadata=SECONDS)
    row_message: float = field(metadata=SECONDS)
    gather_efficiency: float = field(metadata=SHARED)
    chip_jitter: float = field(metadata=SHARED | OR_ZERO)
    slice_jitter: float = field(metadata=SHARED | OR_ZERO)
    dispatch: float = field(metadata=SECONDS)
    turnaround: float = field(metadata=SECONDS)
    matmul_read: float | None = field(default=None, metadata=SHARED)
    group_efficiency: float | None = field(default=None, metadata=SHARED)
    group_fill: float | None = field(default=None, metadata=SECONDS)
    chip_launch: float | None = field(default=None, metadata=SECONDS)
    lane_crossing: float | None = field(default=None, metadata=SECONDS)
    die_launch: float | None = field(default=None, metadata=SECONDS)
    hbm_read: float | None = field(default=None, metadata=SHARED)
    matmul_overlap_in_step: float | None = field(default=None, metadata={"unit": EXPONENT})
    calibrated_times: tuple[tuple[str, float], ...] = ()

    def time_of(self, kind: str | None) -> float:
        """Return what the seconds of a kind of collective, or of attention, are multiplied by."""
        for name, factor in self.calibrated_times:
            if name == kind:
                return factor
        return 1.0

    def __post_init__(self) -> None:
        check_fields(self, "costs")
        for name, unit in units_of(CostConstants).items():
            power = getattr(self, name)
            if unit == EXPONENT and power is not None and power < 1:
                raise HardwareError(
                    f"costs: {name} is {power}, and below 1 two resources would take longer than "
                    "one after the other; write 1 (no overlap) or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A JAX device, a whole chip or half of one (v2, v3, 7x), with its share of the chip.

    The units are those of `Chip`.
    """

    name: str
    flops: PeakRates
    vpu_flops: float
    hbm_bytes: float
    hbm_usable_bytes: float
    hbm_bandwidth: float
    vmem_bytes: float
    cmem_bytes: float
    tensor_cores: int
    mxus: int
    mxu_side: int
    clock: float
    costs: CostConstants
    mxu_side_fp8: int | None = None

    def side(self, dtype: str) -> int:
        """Return the rows (and columns) of the systolic array for operands of `dtype`."""
        return self.mxu_side_fp8 or self.mxu_side if dtype == "fp8" else self.mxu_side

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s for `dtype`; raise HardwareError if it has no such matmul."""
        if dtype not in self.flops:
            raise HardwareError(
                f"{self.name} has no {dtype} matmul; it multiplies {', '.join(self.flops)}"
            )
        return self.flops[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A TPU chip; numbers are per chip unless stated otherwise.

    generation: generation whose slices it forms (`v4`, ..., `7x`).
    slice_rules: the legal slices of its own generation.
    devices: JAX devices on the chip.
    mxu_side, mxu_side_fp8: rows and columns of a systolic array; None if fp8 has the same.
    clock: Hz.
    flops: peak FLOP/s by dtype; a dtype that is absent has no matmul. f32 is JAX's default
        precision, one bf16 pass, so it has the bf16 peak.
    vpu_flops: peak FLOP/s of the vector unit.
    hbm_bytes: HBM as marketed.
    hbm_usable_bytes: HBM that the compiler lets a program use.
    hbm_bandwidth: nominal B/s, of reads and writes together.
    ici_bandwidth: nominal B/s of one link per direction; two links per torus dimension.
    die_to_die_bandwidth: B/s between the chip's two devices per direction; 0 if it has one device.
    dcn_bandwidth, pcie_bandwidth: B/s out of the chip, in one direction.
    host_chips, host_cpus, host_bytes: chips that share a host, and the host's vCPUs and memory.
    power: mean watts in use; None if not published.
    price: USD an hour on demand; None if not published.
    clock_share: the clock over the chip's own (`at_clock`), by which peaks are lowered too.
    ici_shares: bandwidth of the links along each torus dimension over `ici_bandwidth`, where a
        what-if makes them differ (`with_ici`); () where all are alike.
    costs: constants of the cost model.
    compiler: what the compiler does for the generation; None if the chip's file does not say.
    calibration: the user's own measurements that its costs come from; None without any.
    """

    name: str
    generation: str
    slice_rules: SliceRules
    year: int = field(metadata={"unit": YEAR})
    devices: int = field(metadata=COUNTED)
    tensor_cores: int = field(metadata=COUNTED)
    sparse_cores: int = field(metadata=COUNTED | OR_ZERO)
    mxus: int = field(metadata=COUNTED)
    mxu_side: int = field(metadata=COUNTED)
    clock: float = field(metadata={"unit": "Hz"})
    flops: PeakRates = field(metadata=FLOPS)
    vpu_flops: float = field(metadata=FLOPS)
    hbm_bytes: float = field(metadata=BYTES)
    hbm_usable_bytes: float = field(metadata=BYTES)
    hbm_bandwidth: float = field(metadata=BANDWIDTH)
    vmem_bytes: float = field(metadata=BYTES)
    cmem_bytes: float = field(metadata=BYTES | OR_ZERO)
    ici_dimensions: int = field(metadata=COUNTED)
    ici_bandwidth: float = field(metadata=BANDWIDTH)
    die_to_die_bandwidth: float = field(metadata=BANDWIDTH | OR_ZERO)
    pod_shape: tuple[int, ...] = field(metadata={"unit": SHAPE})
    dcn_bandwidth: float = field(metadata=BANDWIDTH)
    pcie_bandwidth: float = field(metadata=BANDWIDTH)
    host_chips: int = field(metadata=COUNTED)
    host_cpus: int | None = field(default=None, metadata=COUNTED)
    host_bytes: float | None = field(default=None, metadata=BYTES)
    mxu_side_fp8: int | None = field(default=None, metadata=COUNTED)
    power: float | None = field(default=None, metadata={"unit": "W"})
    price: float | None = field(default=None, metadata=OR_ZERO | {"unit": "USD/h"})
    clock_share: float = 1.0
    ici_shares: tuple[float, ...] = ()
    costs: CostConstants
    compiler: CompilerRules | None = None
    calibration: Calibration | None = None
    _device: Device | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.flops, PeakRates):
            object.__setattr__(self, "flops", PeakRates.of(self.flops))
        check_fields(self, self.name)
        if self.mxus % self.devices:
            raise HardwareError(
                f"{self.name}: {self.mxus} MXUs cannot be shared by {self.devices} devices; "
                f"write a multiple of {self.devices}"
            )

    def replace(self, **changes: Any) -> "Chip":
        """Return the chip with other numbers: a what-if.

        Fields of `costs` and `compiler` are named directly.

        changes: new values by field; a quantity is text with its unit, or a number in SI. `flops`
            changes the dtypes that it names.

        Raise HardwareError for an unknown field or an invalid value, and UnitError for a quantity
        that cannot be read.

        >>> from tpusim.hardware import load_chip
        >>> load_chip("v4").replace(hbm_bandwidth="2.4 TB/s", hop_latency=1e-6).hbm_bandwidth
        2400000000000.0
        """
        others = dict.fromkeys(("name", "generation", "slice_rules", "costs", "compiler"), "")
        known = CHIP_UNITS | COST_UNITS | COMPILER_UNITS | others
        for name in changes:
            if name not in known:
                raise HardwareError(f"a chip has no field {name!r}; {nearest(name, known)}")
        if "flops" in changes:
            changes["flops"] = {**self.flops, **_rates(changes["flops"])}
        values = {
            name: read_value(change, known[name], name) if isinstance(change, str) else change
            for name, change in changes.items()
        }
        for part, units in (("costs", COST_UNITS), ("compiler", COMPILER_UNITS)):
            inner = {name: values.pop(name) for name in units if name in values}
            if inner:
                whole = values.get(part, getattr(self, part)) or CompilerRules()
                values[part] = dataclasses.replace(whole, **inner)
        return dataclasses.replace(self, **values)

    def with_ici(self, dimension: int, factor: float) -> "Chip":
        """Return the chip with `factor` times the bandwidth on its links along one dimension.

        dimension: of the torus, from 0.

        >>> from tpusim.hardware import load_chip
        >>> load_chip("v4").with_ici(1, 1.1).ici_shares
        (1.0, 1.1, 1.0)
        """
        shares = list(self.ici_shares or (1.0,) * self.ici_dimensions)
        shares[dimension] *= factor
        return dataclasses.replace(self, ici_shares=tuple(shares))

    def at_clock(self, clock: str | float) -> "Chip":
        """Return the chip with its cores at another clock, as in a lower power state.

        Matrix, vector and cross-lane units slow down with it, and the steps of kernels; HBM, links,
        hosts and launches do not, which have clocks of their own.

        clock: Hz, or text such as `1.9 GHz`; from 1 MHz to the chip's own.

        Raise HardwareError for a clock out of range, and UnitError for one that cannot be read.

        >>> from tpusim.hardware import load_chip
        >>> load_chip("7x").at_clock("1.1 GHz").flops["bf16"] / 1e12
        1153.5
        """
        hertz = read_value(clock, CHIP_UNITS["clock"], "clock") if isinstance(clock, str) else clock
        number = isinstance(hertz, int | float) and not isinstance(hertz, bool)
        if not (number and LEAST_CLOCK <= hertz <= self.clock):
            raise HardwareError(
                f"clock is {clock!r}, and the cores of {self.name} run at up to "
                f"{self.clock / 1e9:g} GHz; write a clock up to that with its unit, such as "
                f"'{0.9 * self.clock / 1e9:.3g} GHz'"
            )
        share = hertz / self.clock
        peaks = {dtype: rate * share for dtype, rate in self.flops.items()}
        crossing = self.costs.lane_crossing
        slower = None if crossing is None else crossing / share
        return dataclasses.replace(
            self,
            costs=dataclasses.replace(
                self.costs, lane_crossing=slower, kernel_step=self.costs.kernel_step / share
            ),
            clock=hertz,
            flops=PeakRates.of(peaks),
            vpu_flops=self.vpu_flops * share,
            clock_share=self.clock_share * share,
        )

    def calibrated(self, calibration: Calibration) -> "Chip":
        """Return the chip with the factors of a user's own measurements in its costs.

        Raise HardwareError for the calibration of another chip, and of a calibrated one.
        """
        if calibration.chip != self.generation:
            raise HardwareError(
                f"the calibration {calibration.name or 'given'} is of {calibration.chip}, and the "
                f"slice has {self.generation}; calibrate on measurements of {self.generation}"
            )
        if self.calibration is not None:
            raise HardwareError(
                f"{self.name} is calibrated already; load the chip anew to calibrate it otherwise"
            )
        costs = dataclasses.replace(self.costs, **calibrated_costs(self.costs, calibration))
        return dataclasses.replace(self, costs=costs, calibration=calibration)

    def _repr_html_(self) -> str:
        """Return peaks, memory and links, for a notebook; `tpusim chips NAME` has the sources."""
        peaks = (f"{dtype} {rate / 1e12:,.4g}" for dtype, rate in self.flops.items())
        usable = format_bytes(self.hbm_usable_bytes)
        bandwidth = format_rate(self.hbm_bandwidth, "B/s")
        link = format_rate(self.ici_bandwidth, "B/s")
        dcn, pcie = (format_rate(rate, "B/s") for rate in (self.dcn_bandwidth, self.pcie_bandwidth))
        rows = [
            ("JAX devices", str(self.devices)),
            ("peak, TFLOP/s", ", ".join(peaks)),
            ("HBM", f"{format_bytes(self.hbm_bytes)}, {usable} usable, {bandwidth}"),
            ("ICI", f"{self.ici_dimensions} dimensions, {link} a link and direction"),
            ("DCN, PCIe", f"{dcn}, {pcie}"),
        ]
        rows += [("power", f"{self.power:g} W in use")] if self.power is not None else []
        rows += [("price", f"{self.price:g} USD an hour")] if self.price is not None else []
        return html_table(f"Chip: TPU {self.name}, {self.year}", rows)

    @property
    def compiler_rules(self) -> CompilerRules:
        """What the compiler does for the chip; its defaults if the chip's file does not say."""
        return self.compiler or CompilerRules()

    def unsaid(self, assumed: str) -> tuple[str, ...]:
        """Return the note that a default is taken of what the chip's file does not say, if so.

        assumed: the default, as a sentence.
        """
        missing = f"the file of {self.name} has no section [compiler]"
        return () if self.compiler else (f"{missing}, so {assumed}",)

    @property
    def full_peak(self) -> float:
        """bf16 FLOP/s at the chip's own clock, against which utilisation counts."""
        return self.flops["bf16"] / self.clock_share

    @property
    def device(self) -> Device:
        """One JAX device of the chip: its numbers, divided by `devices`; made once."""
        if self._device is None:
            object.__setattr__(self, "_device", self._made_device())
        return self._device or self._made_device()

    def _made_device(self) -> Device:
        part = self.devices
        return Device(
            name=self.name,
            flops=PeakRates(tuple((dtype, rate / part) for dtype, rate in self.flops.items())),
            tensor_cores=self.tensor_cores // part,
            mxus=self.mxus // part,
            mxu_side=self.mxu_side,
            mxu_side_fp8=self.mxu_side_fp8,
            clock=self.clock,
            costs=self.costs,
            **{name: getattr(self, name) / part for name in _SHARED_BY_DEVICES},
        )


CHIP_UNITS = units_of(Chip)
COST_UNITS = units_of(CostConstants)
COMPILER_UNITS = units_of(CompilerRules)


def _rates(changes: Any) -> dict[str, Any]:
    """Return the changed peaks, dtype -> FLOP/s."""
    if not isinstance(changes, Mapping):
        raise HardwareError(f"flops is {changes!r}; write peaks by dtype, as in {{'bf16': 275e12}}")
    for dtype in changes:
        if dtype not in DTYPES:
            raise HardwareError(f"flops: unknown dtype {dtype!r}; {nearest(str(dtype), DTYPES)}")
    return {
        dtype: parse(rate, "FLOP/s", f"flops.{dtype}") if isinstance(rate, str) else rate
        for dtype, rate in changes.items()
    }
