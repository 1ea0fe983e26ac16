"""A result as a short report for a terminal."""

from collections.abc import Iterator

from tpusim.result import CONVENTION, Result
from tpusim.units import format_bytes, format_seconds


def summary(result: Result) -> str:
    """The verdict first, then where the time and the memory go."""
    return "\n".join(_lines(result))


def _lines(r: Result) -> Iterator[str]:
    chosen = "given" if r.verdicts.placement_given else "chosen"
    yield f"{r.model} on {r.pod} ({r.pod.chips} chips)"
    yield f"plan        {r.plan}"
    yield f"placement   {r.placement} ({chosen})"
    yield ""
    if not r.fits:
        yield f"DOES NOT FIT: {infeasible_reason(r)}"
    yield (
        f"step time   {format_seconds(r.step_time_s)}   MFU {r.mfu:.1%}   HFU {r.hfu:.1%}   "
        f"{r.tokens_per_s:,.0f} tokens/s   {r.tflops_per_device:.1f} TFLOP/s a device"
    )
    yield f"            {CONVENTION}"
    yield ""
    yield "where the step goes"
    for label, seconds in r.breakdown_s.items():
        share = seconds / r.step_time_s
        yield f"  {label:<22} {format_seconds(seconds):>10} {share:>7.1%}"
    yield f"  {'sum':<22} {format_seconds(sum(r.breakdown_s.values())):>10} {1:>7.1%}"
    yield ""
    yield (
        f"HBM peak    {format_bytes(r.hbm_peak_bytes)} of {format_bytes(r.hbm_bytes)} usable "
        f"a device: {_memory(r)}"
    )
    yield f"links       {_links(r)}"
    yield from _notes(r)


def infeasible_reason(r: Result) -> str:
    """Why a plan does not fit: what it needs, what there is, and who holds it."""
    need, have = format_bytes(r.hbm_peak_bytes), format_bytes(r.hbm_bytes)
    return f"needs {need} of {have} usable HBM a device: {_memory(r)}"


def _memory(r: Result) -> str:
    parts = (f"{category} {format_bytes(n)}" for category, n in r.memory_bytes.items())
    return " + ".join(parts)


def _links(r: Result) -> str:
    return ", ".join(f"{link} {use:.0%}" for link, use in r.link_use.items()) or "none used"


def _notes(r: Result) -> Iterator[str]:
    redundant, padding = float(r.flops.redundant), float(r.flops.padding)
    if redundant or padding:
        whole = float(r.flops.total)
        yield (
            f"extra work  {redundant / whole:.2%} of FLOPs redundant, {padding / whole:.2%} padding"
        )
    for dim, size, axis, shards in r.verdicts.dropped:
        yield f"note        {dim} ({size}) is smaller than {axis} ({shards}): replicated over it"
    for what, tensor, times in r.unasked:
        yield f"note        nobody asked for the {what} of {tensor} ({times} a step)"
