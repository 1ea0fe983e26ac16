"""The largest operations against the chip's roofs, as a figure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.lines import operations
from tpusim.phase import Phase
from tpusim.program import Compute, Estimate, Several, Single, Vector, Work, counted
from tpusim.report.canvas import EDGE, SMALL, beside, device_of, head, legend, new_figure, quiet
from tpusim.report.palette import INK, MUTED, styles
from tpusim.report.places import LOWER, labels, places
from tpusim.report.timeline import short
from tpusim.result import PICO, Result
from tpusim.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

TERA = 1e12
LARGEST = 12
MARKERS = {"vector": "s", "attention": "D", "convolution": "^"}
MANY = 2000
LONGEST = 40
LEADER = {"arrowstyle": "-", "linewidth": 0.6, "color": MUTED, "shrinkA": 1.0, "shrinkB": 3.0}
FAR, FAINT = 200, 1e-6
"""Operations in the figure; markers that are no circle; a ratio that has room for few ticks;
letters of a name; the line from a point to a number that is far from it; the most intensity that
has a place, in those of the ridge; and the least share of the peak that is shown."""


@dataclass(frozen=True, slots=True)
class Point:
    """An operation of the step, all its `count` times together.

    intensity: FLOPs a byte between HBM and the core. flops_per_s: reached by one device, while the
    operation runs. FLOPs are those of the matrix unit, or vector operations for label `vector`.
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

    dtype: whose peak the roof is, the fastest that the step multiplies in.
    """

    points: tuple[Point, ...]
    peak_flops: float
    hbm_bandwidth: float
    dtype: str = "bf16"

    def roof(self, intensity: float) -> float:
        """The most FLOP/s at that intensity: `min(peak, intensity x bandwidth)`."""
        return min(self.peak_flops, intensity * self.hbm_bandwidth)

    @property
    def farthest(self) -> float:
        """The most intensity that a figure has a place for."""
        return FAR * self.peak_flops / self.hbm_bandwidth

    def reached(self, point: Point) -> float:
        """The share of the roof that an operation reaches."""
        return point.flops_per_s / self.roof(point.intensity)


def roofline_data(result: Result, largest: int = LARGEST) -> Roofline:
    """The operations with the largest total time, against peak and nominal HBM bandwidth.

    Of a pipeline they are those of the fullest stage. What only moves data is left out.
    """
    device, devices = result.pod.chip.device, result.pod.devices // len(result.programs)
    times: dict[str, tuple[int, int]] = {}
    kinds: dict[str, str] = {}
    for record in result.shown.tasks:
        count, total = times.get(record.name, (0, 0))
        times[record.name] = count + record.count, total + record.total_ps
        kinds[record.name] = record.label
    computed: dict[str, list[tuple[Compute, int]]] = {}
    for op, runs in counted(result.program.body, result.program.segments):
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
                Point(name, phase, kinds[name], count, seconds, flops / moved, flops / seconds)
            )
    works = [op.work for ops in computed.values() for op, _ in ops]
    dtypes = {"bf16", *(dtype for work in works for dtype in _dtypes(work))}
    fastest = max(sorted(dtypes), key=device.peak)
    peak = device.peak(fastest)
    shown = (point for point in points if point.flops_per_s >= FAINT * peak)
    most = sorted(shown, key=lambda point: -point.seconds)[:largest]
    return Roofline(tuple(most), peak, device.hbm_bandwidth, fastest)


def _dtypes(work: Work) -> tuple[str, ...]:
    """What it multiplies; the compiler's own estimates do not say."""
    parts = work.parts if isinstance(work, Several) else (work,)
    return tuple(part.dtype for part in parts if not isinstance(part, Vector | Estimate))


def _flops(op: Compute, devices: int) -> float:
    """FLOPs of one device, one time."""
    return float(op.work.flops) if isinstance(op.work, Vector) else float(op.flops.total) / devices


def _bytes(op: Compute) -> float:
    return float(op.work.read_bytes + op.work.write_bytes)


def plot_roofline(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw `roofline_data` on `ax`, or on a new figure; returns the axes.

    Points too close to be told apart are one point, with the numbers of all. The numbers are those
    of the list beside the axes. What reads and writes next to no HBM, as its data is on the chip,
    stands at the edge.
    """
    data = roofline_data(result)
    ax = new_figure(9.6, 3.9).add_subplot() if ax is None else ax
    _frame(ax, data)
    known = styles(point.label for point in data.points)
    at = [(min(point.intensity, data.farthest), point.flops_per_s) for point in data.points]
    for point, place in zip(data.points, at, strict=True):
        ax.plot(
            *place, MARKERS.get(point.label, "o"), markersize=7,
            color=known[point.label].face, markeredgecolor=INK, markeredgewidth=EDGE, zorder=4,
        )  # fmt: skip
    *where, (edge, _) = places(ax, [*at, (ax.get_xlim()[1], data.peak_flops)])
    for first, text, shift in labels(where, edge):
        ax.annotate(
            text, at[first - 1], xytext=shift, ha="center", va="center",
            textcoords="offset points", fontsize=SMALL, color=INK, zorder=5,
            arrowprops=LEADER if shift[1] in LOWER else None,
        )  # fmt: skip
    _list(ax, result, data)
    beyond = any(point.intensity > data.farthest for point in data.points)
    more = "; at the edge: data on the chip" if beyond else ""
    ax.set_xlabel(f"intensity [FLOP/B of HBM]{more}", color=INK)
    ax.set_ylabel("reached by one device [TFLOP/s]", color=INK)
    quiet(ax, grid="both")
    share = max((p.flops_per_s for p in data.points), default=0) / data.peak_flops
    head(ax, f"{device_of(result)}: largest operations, up to {share:.0%} of the {data.dtype} peak")
    legend(ax, known)
    return ax


def _frame(ax: "Axes", data: Roofline) -> None:
    """The roofs, on axes that hold them, the ridge and all points."""
    ridge = data.peak_flops / data.hbm_bandwidth
    places = [ridge, *(point.intensity for point in data.points)]
    low, high = min(places) / 4, min(max(places), data.farthest) * 4
    floor = min([data.roof(low), *(point.flops_per_s for point in data.points)]) / 2
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(floor, data.peak_flops * 2.2)
    for axis, unit in ((ax.xaxis, 1.0), (ax.yaxis, TERA)):
        _ticks(axis, unit)
    ax.plot(
        [low, ridge, high], [data.roof(low), data.peak_flops, data.peak_flops], color=INK, lw=1.4
    )
    ax.annotate(
        f"{data.dtype} {format_rate(data.peak_flops, 'FLOP/s')}", (high, data.peak_flops),
        xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=SMALL, color=INK,
    )  # fmt: skip
    middle = (low * ridge) ** 0.5
    at = middle if middle * ridge > low * high else ridge  # beside the longer of slope and roof
    ax.annotate(
        f"HBM {format_rate(data.hbm_bandwidth, 'B/s')}", (at, data.roof(at)), xytext=(-6, 3),
        textcoords="offset points", ha="right", fontsize=SMALL, color=INK,
    )  # fmt: skip


def _ticks(axis: "Axis", unit: float) -> None:
    """Plain numbers at 1, 2 and 5 of each power of ten, or at 1 alone where those are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < MANY * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g}"))


def _list(ax: "Axes", result: Result, data: Roofline) -> None:
    """Number, name, share of the step and of the roof of each operation, beside the axes."""
    rows = [("", "operation", "", "of step", "of roof")]
    ops = operations(result.program)
    names = {point.name: _named(ops[point.name], result) for point in data.points}
    for number, point in enumerate(data.points, 1):
        share, reached = point.seconds / result.step_time_s, data.reached(point)
        what = (names[point.name], str(point.phase))
        rows.append((str(number), *what, f"{share:.1%}", f"{reached:.0%}"))
    beside(ax, rows, "><<>>")


def _named(op: Single, result: Result) -> str:
    """The operation as a user calls it; after a line of code, the end of its scope."""
    name = short(result.called(op))
    scope = "/".join(op.scope.split("/")[-2:])
    text = f"{name} {scope}" if getattr(op, "source", "") else name
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
