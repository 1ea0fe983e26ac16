"""The largest operations of the step against the chip's roofs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.base.phase import Phase
from tpusim.base.units import format_rate
from tpusim.program import CombinedWork, Compute, EstimatedWork, Single, VectorWork, Work, walk_ops
from tpusim.report.figures import canvas
from tpusim.report.figures.label_positions import LOWER_SHIFTS, axes_positions, place_labels
from tpusim.report.figures.palette import EDGE, INK, MUTED, Style, styles
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.figures.timeline import short_name
from tpusim.results import PICO, Result, operations_by_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

TERA = 1e12
OPERATIONS_SHOWN = 12
LONGEST_OPERATION_NAME = 40
"""Operations in the figure, and letters of a name beside it."""

MARKERS = {"vector": "s", "attention": "D", "convolution": "^"}
"""The marker of each label that has another one than a circle."""

LEADER = {"arrowstyle": "-", "linewidth": 0.6, "color": MUTED, "shrinkA": 1.0, "shrinkB": 3.0}
"""The line from a point to a number far from it."""

SPARSE_TICKS_RATIO = 2000
"""An axis whose ends have at least this ratio has one tick for each power of ten."""

FARTHEST_INTENSITY, LEAST_PEAK_SHARE = 200, 1e-6
"""The highest intensity that is drawn, in multiples of the ridge's, and the lowest fraction of the
peak."""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """An operation of the step, all its `count` times together.

    FLOPs are those of the matrix unit, or vector operations for label `vector`.

    intensity: FLOPs per byte between HBM and the core.
    flops_per_s: reached by one device while the operation runs.
    """

    name: str
    phase: Phase
    label: str
    count: int
    seconds: float
    intensity: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points, the largest total time first, and the roofs of one device: FLOP/s and B/s.

    dtype: of the roof, the fastest in which the step multiplies.
    """

    points: tuple[RooflinePoint, ...]
    peak_flops: float
    hbm_bandwidth: float
    dtype: str = "bf16"

    def roof(self, intensity: float) -> float:
        """Return the most FLOP/s at an intensity: `min(peak, intensity x bandwidth)`."""
        return min(self.peak_flops, intensity * self.hbm_bandwidth)

    @property
    def farthest(self) -> float:
        """The highest intensity that is drawn."""
        return FARTHEST_INTENSITY * self.peak_flops / self.hbm_bandwidth

    def reached(self, point: RooflinePoint) -> float:
        """Return the fraction of the roof that an operation reaches."""
        return point.flops_per_s / self.roof(point.intensity)


def roofline_data(result: Result, largest: int = OPERATIONS_SHOWN) -> Roofline:
    """Return the operations with the largest total time, against peak and nominal HBM bandwidth.

    Of a pipeline they are those of the fullest stage. Operations that only move data are left out.
    """
    device, devices = result.pod.chip.device, result.pod.devices // len(result.programs)
    times: dict[str, tuple[int, int]] = {}
    kinds: dict[str, str] = {}
    for record in result.shown.tasks:
        count, total = times.get(record.name, (0, 0))
        times[record.name] = count + record.count, total + record.total_ps
        kinds[record.name] = record.label
    computed: dict[str, list[tuple[Compute, int]]] = {}
    for op, runs in walk_ops(result.program.body, result.program.segments):
        if isinstance(op, Compute):
            computed.setdefault(op.name, []).append((op, runs))
    points = []
    for name, ops in computed.items():
        count, picoseconds = times.get(name, (0, 0))
        flops = sum(runs * _flops(op, devices) for op, runs in ops)
        moved = sum(runs * _bytes(op) for op, runs in ops)
        if picoseconds and flops and moved:
            seconds, phase = picoseconds * PICO, ops[0][0].phase
            points.append(
                RooflinePoint(
                    name, phase, kinds[name], count, seconds, flops / moved, flops / seconds
                )
            )
    works = [op.work for ops in computed.values() for op, _ in ops]
    dtypes = {"bf16", *(dtype for work in works for dtype in _dtypes(work))}
    fastest = max(sorted(dtypes), key=device.peak)
    peak = device.peak(fastest)
    shown = (point for point in points if point.flops_per_s >= LEAST_PEAK_SHARE * peak)
    most = sorted(shown, key=lambda point: -point.seconds)[:largest]
    return Roofline(tuple(most), peak, device.hbm_bandwidth, fastest)


def _dtypes(work: Work) -> tuple[str, ...]:
    """Return the dtypes of the matmuls; the compiler's own estimates do not say."""
    parts = work.parts if isinstance(work, CombinedWork) else (work,)
    return tuple(part.dtype for part in parts if not isinstance(part, VectorWork | EstimatedWork))


def _flops(op: Compute, devices: int) -> float:
    """Return the FLOPs of one device in one execution."""
    if isinstance(op.work, VectorWork):
        return float(op.work.flops)
    return float(op.flops.total) / devices


def _bytes(op: Compute) -> float:
    return float(op.work.read_bytes + op.work.write_bytes)


@of_result
def plot_roofline(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the largest operations against the roofs of compute and HBM.

    Points too close to distinguish share a label with the numbers of all, which refer to the
    list beside the axes. Operations with hardly any HBM traffic, as their data is on the chip, are
    at the edge.
    """
    data = roofline_data(result)
    ax = canvas.new_figure(9.6, 3.9).add_subplot() if ax is None else ax
    _draw_roofs(ax, data)
    known = styles(point.label for point in data.points)
    at = [(min(point.intensity, data.farthest), point.flops_per_s) for point in data.points]
    marker: Style = {
        "markersize": 7,
        "markeredgecolor": INK,
        "markeredgewidth": EDGE,
        "zorder": 4,
    }
    for point, position in zip(data.points, at, strict=True):
        shape, colour = MARKERS.get(point.label, "o"), known[point.label].face
        ax.plot(*position, shape, color=colour, **marker)
    head = ("", "operation", "", "of step", "of roof")
    canvas.draw_table(ax, [head, *operation_rows(result, data)], "><<>>")
    beyond = any(point.intensity > data.farthest for point in data.points)
    more = "; at the edge: data on the chip" if beyond else ""
    ax.set_xlabel(f"intensity [FLOP/B of HBM]{more}", color=INK)
    ax.set_ylabel("reached by one device [TFLOP/s]", color=INK)
    canvas.simplify_axes(ax, grid="both")
    share = max((p.flops_per_s for p in data.points), default=0) / data.peak_flops
    reached = f"up to {share:.0%} of the {data.dtype} peak"
    canvas.draw_title(ax, f"{canvas.device_title(result)}: largest operations, {reached}")
    canvas.draw_legend(ax, known)
    _draw_labels(ax, at)
    return ax


def _draw_labels(ax: "Axes", at: Sequence[tuple[float, float]]) -> None:
    """Number the points; all else has to be drawn before."""
    *where, (edge, _) = axes_positions(ax, [*at, (ax.get_xlim()[1], ax.get_ylim()[1])])
    centred: Style = {"ha": "center", "va": "center", "zorder": 5}
    for first, text, shift in place_labels(where, edge):
        leader = LEADER if shift[1] in LOWER_SHIFTS else None
        canvas.draw_note(ax, text, at[first - 1], shift, arrowprops=leader, **centred)


def _draw_roofs(ax: "Axes", data: Roofline) -> None:
    """Draw the roofs on axes that contain them, the ridge and all points."""
    ridge = data.peak_flops / data.hbm_bandwidth
    intensities = [ridge, *(point.intensity for point in data.points)]
    low, high = min(intensities) / 4, min(max(intensities), data.farthest) * 4
    floor = min([data.roof(low), *(point.flops_per_s for point in data.points)]) / 2
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(floor, data.peak_flops * 2.2)
    for axis, unit in ((ax.xaxis, 1.0), (ax.yaxis, TERA)):
        _set_ticks(axis, unit)
    heights = [data.roof(low), data.peak_flops, data.peak_flops]
    ax.plot([low, ridge, high], heights, color=INK, lw=1.4)
    peak = f"{data.dtype} {format_rate(data.peak_flops, 'FLOP/s')}"
    canvas.draw_note(ax, peak, (high, data.peak_flops), (-3, 3), ha="right")
    middle = (low * ridge) ** 0.5
    at = middle if middle * ridge > low * high else ridge  # beside the longer of slope and roof
    bandwidth = f"HBM {format_rate(data.hbm_bandwidth, 'B/s')}"
    canvas.draw_note(ax, bandwidth, (at, data.roof(at)), (-6, 3), ha="right")


def _set_ticks(axis: "Axis", unit: float) -> None:
    """Set plain numbers at 1, 2 and 5 of each power of ten, or at 1 alone on a long axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < SPARSE_TICKS_RATIO * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g}"))


def operation_rows(result: Result, data: Roofline) -> list[tuple[str, ...]]:
    """Return number, name, pass, and share of the step and of the roof, of each operation."""
    ops = operations_by_name(result.program)
    return [
        (
            str(number),
            list_name(ops[point.name], result),
            str(point.phase),
            f"{point.seconds / result.step_time_s:.1%}",
            f"{data.reached(point):.0%}",
        )
        for number, point in enumerate(data.points, 1)
    ]


def list_name(op: Single, result: Result) -> str:
    """Return the user's name of an operation; after a line of code, as much of its scope as fits.

    These are the last two parts of the scope, the last one, or none.
    """
    text = short_name(result.called(op))
    if getattr(op, "source", ""):
        ends = ("/".join(op.scope.split("/")[-parts:]) for parts in (2, 1))
        fitting = (f"{text} {end}" for end in ends)
        text = next((each for each in fitting if len(each) <= LONGEST_OPERATION_NAME), text)
    return text if len(text) <= LONGEST_OPERATION_NAME else f"{text[: LONGEST_OPERATION_NAME - 1]}…"


register_figure("roofline", roofline_data, plot_roofline)
