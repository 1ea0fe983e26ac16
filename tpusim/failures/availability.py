"""Availability: how often a slice can be placed while parts of its pod are out of service."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import HardwareError
from tpusim.base.short_repr import ShortRepr
from tpusim.base.shown_value import shown
from tpusim.base.text_entry import entry
from tpusim.base.text_table import folded_table
from tpusim.base.value_checks import check_count, is_number
from tpusim.failures.causes import CAUSES, DAY_S
from tpusim.failures.exposure import CUBE_CHIPS, SWITCHES
from tpusim.failures.pod_question import Chances, PodQuestion
from tpusim.hardware import Chip, format_shape, load_chip
from tpusim.hardware.topology import Topology

HOSTS = (0.99, 0.995, 0.999, 0.9999)
"""Availabilities of hosts of which each answer is shown beside the asked one."""

TARGETS = (0.95, 0.99, 0.999)
"""Probabilities for which spares are counted."""

MOST_CUBES = MOST_SLICES = 10_000
LEAST_SPARES = 64
"""Spares that are tried at least, however few cubes the slices need."""

LARGEST_SHOWN = 0.99999
"""Probabilities above this are shown as larger than it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Availability(ShortRepr):
    """How often slices can be placed. Prints as a report.

    question: the slices and the pod.
    chances: at the asked availability of a host.
    others: at other ones, for comparison.
    spares: cubes beyond those of the slices that place them with each probability; None where
        more than as many again would be needed. Empty where links are fixed.
    """

    question: PodQuestion
    chances: Chances
    others: tuple[Chances, ...]
    spares: Mapping[float, int | None]

    @property
    def probability(self) -> float:
        """The probability that all slices can be placed: by switches, or with fixed links."""
        found = self.chances
        best = found.contiguous if found.switched is None else found.switched
        return found.given if best is None else best

    @property
    def title(self) -> str:
        """The slices and the pod."""
        asked = self.question
        many = f"{asked.slices} x " if asked.slices > 1 else ""
        pod = f"{asked.pool} cubes" if asked.pool else f"a {format_shape(asked.chip.pod_shape)} pod"
        return f"{many}{asked.chip.name}:{format_shape(asked.shape)} in {pod}"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def facts(self) -> dict[str, Any]:
        """Return the result as plain data: probabilities and fractions."""
        asked = self.question
        return {
            "chip": asked.chip.name,
            "shape": format_shape(asked.shape),
            "slices": asked.slices,
            "cubes": asked.pool,
            "cubes_needed": asked.cubes if asked.pool else 0,
            "probability": self.probability,
            **self.chances._asdict(),
            "spares": {f"{target:g}": count for target, count in self.spares.items()},
            "by_host": [each._asdict() for each in self.others],
        }

    def _lines(self) -> Iterator[str]:
        asked, found = self.question, self.chances
        needed = f" ({asked.cubes} needed)" if asked.pool else ""
        yield from entry("placed", f"{percent(self.probability)} of the time: {self.title}{needed}")
        yield from entry("host", self._host())
        if found.cube is not None:
            part = "a slice" if asked.in_cube else "a cube"
            yield from entry("cube", f"{part} is up {percent(found.cube)} of the time")
        if found.unrouted is not None and not asked.in_cube:
            yield from entry(
                "switches",
                f"{percent(found.unrouted)} without routing around those that are out: a slice "
                f"crosses all {SWITCHES}",
            )
        if found.contiguous is not None:
            yield from entry(
                "fixed links",
                f"{found.contiguous:.1%} in any contiguous place, {percent(found.given)} in a "
                "given one",
            )
        if self.spares:
            yield from entry("spares", self._spares())
        yield from entry("goodput", f"{found.goodput:.1%} of the chips are in such slices")
        yield ""
        yield from folded_table(self.rows())

    def _host(self) -> str:
        host, cause = self.chances.host, CAUSES["machine"]
        days = cause.repair_of(host) / DAY_S
        return (
            f"up {_share(host)} of the time: {cause.per_day:.2%} fail on a day, and are repaired "
            f"in {days:.3g} days; cables likewise"
        )

    def _spares(self) -> str:
        """Return the spares of each target, in words."""
        found = [(count, _share(at)) for at, count in self.spares.items() if count is not None]
        said = ", ".join(f"{count} for {share}" for count, share in found)
        return f"cubes beyond those needed: {said or 'more than as many again'}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of what can be placed by availability of a host, with its head."""
        each = sorted({self.chances, *self.others}, key=lambda chances: chances.host)
        kept = {key: of for key, of in _COLUMNS.items() if getattr(self.chances, key) is not None}
        rows = [
            (_share(found.host), *(form(getattr(found, key)) for key, (_, form) in kept.items()))
            for found in each
        ]
        return [("host", *(title for title, _ in kept.values())), *rows]


def percent(fraction: float) -> str:
    """Return a probability in percent, with more digits close to 1.

    >>> percent(0.4567), percent(0.9991), percent(0.9999999)
    ('45.7%', '99.91%', '>99.999%')
    """
    if fraction > LARGEST_SHOWN:
        return f">{LARGEST_SHOWN:.3%}"
    digits = next((n for n in (1, 2) if 1 - fraction > 10.0 ** -(n + 2)), 3)
    return f"{fraction:.{digits}%}"


def _share(fraction: float) -> str:
    """Return an availability of parts in percent, as it is written: `99.5%`."""
    return f"{100 * fraction:.4g}%"


_COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "switched": ("switched", percent),
    "unrouted": ("without routing", percent),
    "contiguous": ("fixed links", "{:.1%}".format),
    "given": ("given place", percent),
    "goodput": ("goodput", "{:.1%}".format),
}
"""Titles and formats of the table: what is drawn has as many digits as its samples allow."""


@checked_call
def availability(
    chip: Chip | str,
    shape: str,
    *,
    host_availability: float | None = None,
    cubes: int | None = None,
    spares: int | None = None,
    slices: int = 1,
    static: bool = False,
) -> Availability:
    """Return how often slices can be placed while parts of their pod are out of service.

    Chips of v4, v5p and 7x are in cubes of 4x4x4, which optical switches join to slices wherever
    the cubes stand: a slice is placed if enough of them are up. Links of other pods are fixed: a
    slice needs a contiguous box of hosts that are up, which is tried on drawn states of the pod.
    Parts fail independently, at the rates of `failures/causes.toml`.

    chip: or its name, such as `v4`.
    shape: chips along each dimension of a slice, such as `8x8x16`.
    host_availability: the fraction of the time in which a host is up, more than 0; None for what
        the rate of failures and the repair time of a machine make.
    cubes: of the pod; None for those of a whole pod.
    spares: cubes beyond those that the slices need, in place of `cubes`.
    slices: that are to stand at the same time.
    static: links are fixed although the chip has switches.

    Raise HardwareError for a slice that the chip does not have, and numbers that cannot be.

    >>> print(round(availability("v4", "16x16x16", spares=8).probability, 2))
    0.97
    """
    chip = load_chip(chip) if not isinstance(chip, Chip) else chip
    dims = Topology.of(chip.slice_rules, shape).dims
    host = CAUSES["machine"].availability if host_availability is None else host_availability
    _check_host(host)
    check_count("slices", slices, 1, MOST_SLICES, HardwareError)
    switched = bool(chip.slice_rules.max_cubes) and not static
    if not switched and (cubes is not None or spares is not None):
        links = "are taken as fixed" if static else "are fixed"
        raise HardwareError(
            f"cubes and spares are for links that are switched, and those of {chip.name} {links}; "
            "leave them out"
        )
    if cubes is not None and spares is not None:
        raise HardwareError("cubes and spares both say how many there are; write one of them")
    asked = PodQuestion(chip, dims, slices)
    if switched:
        asked = _of_cubes(asked, cubes, spares)
    elif slices * asked.chips > prod(chip.pod_shape):
        raise HardwareError(_too_large(asked, f"{prod(chip.pod_shape):,} chips", "fewer slices"))
    targets = TARGETS if switched else ()
    most = max(asked.cubes, LEAST_SPARES)
    return Availability(
        question=asked,
        chances=asked.chances(host),
        others=tuple(asked.chances(each) for each in HOSTS if each != host),
        spares={target: asked.spares(host, target, most) for target in targets},
    )


def _of_cubes(asked: PodQuestion, cubes: int | None, spares: int | None) -> PodQuestion:
    """Return the question with the cubes of its pod. Raise HardwareError where they are too few."""
    pod = prod(asked.chip.pod_shape) // CUBE_CHIPS
    pool = pod
    if cubes is not None:
        check_count("cubes", cubes, 1, MOST_CUBES, HardwareError)
        pool = cubes
    elif spares is not None:
        check_count("spares", spares, 0, MOST_CUBES, HardwareError)
        pool = asked.cubes + spares
    if asked.cubes > pool:
        raise HardwareError(_too_large(asked, f"{pool} cubes", f"cubes = {asked.cubes} or more"))
    return PodQuestion(asked.chip, asked.shape, asked.slices, pool, whole=pool == pod)


def _too_large(asked: PodQuestion, pod: str, advice: str) -> str:
    many = f"{asked.slices} slices" if asked.slices > 1 else "a slice"
    return f"{many} of {format_shape(asked.shape)} cannot stand in a pod of {pod}; write {advice}"


def _check_host(host: Any) -> None:
    if not (is_number(host) and 0 < host <= 1):
        raise HardwareError(
            f"host_availability is {shown(host)}; write the fraction of the time in which a host "
            "is up, more than 0 and at most 1, such as 0.999"
        )
