"""The expected time of a training run with failures, in closed form.

It holds for failures at a constant rate. Where a run has more than a tier of checkpoints, or runs
with fewer slices or on a broken torus, it is of first order in what that costs.
"""

from collections.abc import Mapping, Sequence
from math import exp, expm1, inf

from tpusim.engine.failure_queue import FailureKind, Loss
from tpusim.engine.training_loop import LoopTimes
from tpusim.results import PICO
from tpusim.training.failure_setup import FailureSetup

LEAST_SHARE = 1e-12
"""Of the time, down to which numbers of units away are counted."""

MOST_EXPONENT = 50.0
"""Of `exp`: a run that takes so many times longer makes no progress."""


def expected_seconds(setup: FailureSetup) -> float:
    """Return the expected wall seconds of a run with failures; infinite where nothing is kept."""
    times = setup.times
    start = sum(length for _, length in times.before) * PICO
    if setup.mttf_s is None:
        return start + times.steps * times.step_ps * PICO * _loop_over_steps(times)
    useful = times.steps * times.step_ps * PICO
    return start + useful * _slower(setup) * _wall_over_useful(setup, setup.mttf_s, useful)


def expected_ettr(rate: float, restart: float, interval: float, stop: float = 0.0) -> float:
    """Return the expected ratio of useful to wall time where little is lost (E[ETTR]).

    rate: failures of the whole job per unit of time.
    restart: until steps run again.
    interval: time between checkpoints.
    stop: for which each stops the steps.

    Source: Kokolis et al., arXiv:2410.21680, `(1 - N r (u0 + dt / 2)) / (1 + w / dt)`.
    """
    lost = rate * (restart + interval / 2)
    return max(0.0, 1 - lost) / (1 + stop / interval)


def ettr(setup: FailureSetup) -> float | None:
    """Return the expected ratio of useful to wall time (`expected_ettr`).

    None without failures, and for other runs than those with one tier of checkpoints.
    """
    times = setup.times
    if setup.mttf_s is None or not times.save_every or times.copy_every:
        return None
    interval, stop = times.save_every * times.step_ps * PICO, times.stop_ps * PICO
    return expected_ettr(1 / setup.mttf_s, restart_seconds(setup), interval, stop)


def _loop_over_steps(times: LoopTimes) -> float:
    """Return the time of the loop over that of its steps: evaluations, checkpoints and copies."""
    extra = times.evaluation_ps / times.evaluate_every if times.evaluate_every else 0.0
    if times.save_every:
        saves = 1 / times.save_every
        copies = 1 / times.copy_every - saves if times.copy_every else 0.0
        waits = max(0, times.write_ps - times.save_every * times.step_ps)
        extra += saves * (times.stop_ps + waits) + copies * times.copy_ps
    return 1 + extra / times.step_ps


def _wall_over_useful(setup: FailureSetup, mttf: float, whole: float) -> float:
    """Return the wall time over that of the steps.

    A stretch between two failures takes `mttf exp(restart / mttf)` with the restart before it. How
    much of it is kept depends on which checkpoint its failure leaves.
    """
    restart = restart_seconds(setup)
    if restart / mttf > MOST_EXPONENT:
        return inf
    kept = sum(
        mttf / (kind.between_ps * PICO) * _kept(kind, setup, mttf, whole) for kind in setup.kinds
    )
    return mttf * exp(restart / mttf) / kept if kept else inf


def _kept(kind: FailureKind, setup: FailureSetup, mttf: float, whole: float) -> float:
    """Return the mean useful seconds of a stretch that its failure leaves."""
    times, recovery = setup.times, setup.recovery
    copied = bool(times.copy_every) and not (kind.swaps and recovery.peer_ps is None)
    over_useful = _loop_over_steps(times)
    if not times.save_every:
        interval, delay = whole, 0.0
    elif 0 < times.stop_ps + times.write_ps <= kind.notice_ps:
        return mttf / over_useful
    else:
        every = times.copy_every if copied else times.save_every
        interval = every * times.step_ps * PICO
        delay = (times.exchange_ps if copied else times.write_ps) * PICO
    cycle = interval * over_useful / mttf
    if cycle + delay / mttf > MOST_EXPONENT:
        return 0.0
    return interval * exp(-delay / mttf) / expm1(cycle)


def restart_seconds(setup: FailureSetup) -> float:
    """Return the mean seconds from a failure to the next step."""
    rates = {kind: 1 / kind.between_ps for kind in setup.kinds}
    mean = sum(rate * _restart_ps(kind, setup) for kind, rate in rates.items())
    return mean / sum(rates.values()) * PICO


def _restart_ps(kind: FailureKind, setup: FailureSetup) -> float:
    recovery, times = setup.recovery, setup.times
    found = (1 - kind.hang_share) * kind.detection_ps + kind.hang_share * kind.hang_ps
    found += sum(length for _, length in recovery.again)
    if kind.swaps:
        found += recovery.replace_ps
    copy = recovery.peer_ps if kind.swaps else recovery.recall_ps
    copied = bool(times.copy_every) and copy is not None
    return found + (copy or 0 if copied else recovery.restore_ps)


def _slower(setup: FailureSetup) -> float:
    """Return the wall time over that with all units there and a healthy torus."""
    step, recovery = setup.times.step_ps, setup.recovery
    links = [kind for kind in setup.kinds if kind.loss is Loss.LINK]
    away = units_away(setup)
    short = sum(share for number, share in away.items() if number > (recovery.spares or 0))
    routed = sum(
        kind.repair_ps / kind.between_ps * kind.excess_ps * (short if kind.replaced else 1.0)
        for kind in links
    )
    slower = 1 + routed / step
    if recovery.spares is None or recovery.displaces:
        return slower
    if recovery.reshard is None:
        return slower / (1 - short) if short < 1 else inf
    most = recovery.slices - 1
    missing = sum(
        share * min(number - recovery.spares, most)
        for number, share in away.items()
        if number > recovery.spares
    )
    return slower * recovery.slices / (recovery.slices - missing)


def units_away(setup: FailureSetup) -> Mapping[int, float]:
    """Return the share of time in which so many units are away for repair.

    Failures come whether the run does steps or waits, and each unit is repaired alone, so the
    number is a birth and death process. A unit with a broken link leaves only while there is a
    spare for it.
    """
    units = [kind for kind in setup.kinds if kind.loss is Loss.UNIT]
    links = [kind for kind in setup.kinds if kind.replaced]
    spares = setup.recovery.spares
    shares, number, term = {0: 1.0}, 0, 1.0
    while term > LEAST_SHARE * max(shares.values()) or number < _load(units):
        swapped = links if spares is None or number < spares else []
        number += 1
        term *= _load([*units, *swapped]) / number
        shares[number] = term
    total = sum(shares.values())
    return {number: share / total for number, share in shares.items()}


def _load(kinds: Sequence[FailureKind]) -> float:
    """Return the mean number of units that kinds of failures keep away."""
    return sum(kind.repair_ps / kind.between_ps for kind in kinds)
