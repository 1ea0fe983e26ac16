"""Durations for people."""

from tpusim.base.units import format_seconds

DAY_S, HOUR_S = 86400.0, 3600.0


def duration(seconds: float) -> str:
    """Return a duration for people: in days, hours, minutes or seconds.

    >>> duration(7776000), duration(5400), duration(90), duration(12.5)
    ('90 d', '1.5 h', '1.5 min', '12.5 s')
    """
    for unit, length in (("d", DAY_S), ("h", HOUR_S), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return format_seconds(seconds)
