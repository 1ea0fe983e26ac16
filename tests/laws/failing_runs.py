"""Random training runs that fail, and a reference that goes through them second by second."""

import random
from collections import Counter
from dataclasses import dataclass, field

from tpusim.engine.failure_queue import Draws, FailureKind, Loss
from tpusim.engine.interrupted_run import Recovery
from tpusim.engine.training_loop import Activity, LoopTimes


def draws(seed: int) -> Draws:
    """Return streams of random numbers, each of its own."""
    between, kind, hang, repair = (random.Random(f"{seed} {name}") for name in range(4))
    return Draws(
        lambda: between.expovariate(1), kind.random, hang.random, lambda: repair.expovariate(1)
    )


def random_run(seed: int) -> tuple[LoopTimes, tuple[FailureKind, ...], Recovery]:
    """Return a run with its kinds of failures, and what follows them."""
    rng = random.Random(seed)
    copies = rng.choice([0, 0, 2, 5])
    saves = copies * rng.choice([1, 3]) if copies else rng.choice([0, 3, 7, 20])
    times = LoopTimes(
        before=((Activity.COMPILATION, rng.randint(0, 30)),),
        steps=rng.randint(1, 120),
        step_ps=rng.randint(1, 12),
        evaluate_every=rng.choice([0, 0, 9, 101]),
        evaluation_ps=rng.randint(0, 9),
        save_every=saves,
        stop_ps=rng.randint(0, 4),
        write_ps=rng.choice([0, 3, 40]),
        copy_every=copies,
        copy_ps=rng.randint(0, 2),
        exchange_ps=rng.choice([0, 9]),
    )
    whole = (times.steps * times.step_ps + 100) * (1 if saves or copies else 8)
    kinds = tuple(
        FailureKind(
            name=loss.value,
            between_ps=whole * rng.uniform(0.5, 4),
            shape=rng.choice([1.0, 1.0, 0.7, 2.0]),
            loss=loss,
            detection_ps=rng.randint(0, 6),
            hang_share=rng.choice([0.0, 0.3]),
            hang_ps=30,
            repair_ps=whole * rng.uniform(0, 0.5),
            notice_ps=rng.choice([0, 0, 50]),
            excess_ps=rng.randint(0, 3) if loss is Loss.LINK else 0,
            replaced=loss is Loss.LINK and rng.random() < 0.5,
        )
        for loss in Loss
        if rng.random() < 0.8
    )
    slices = rng.choice([1, 1, 4])
    recovery = Recovery(
        restart=((Activity.INITIALIZATION, rng.randint(0, 12)), (Activity.WARM_UP, 1)),
        reshard=((Activity.RESHARD, rng.randint(1, 8)),) if slices > 1 else None,
        replace_ps=rng.randint(0, 5),
        restore_ps=rng.randint(0, 7),
        recall_ps=1,
        peer_ps=rng.choice([None, 3]),
        spares=rng.choice([0, 1, 3, None]),
        displaces=slices == 1 and rng.random() < 0.2,
        slices=slices,
    )
    return times, kinds, recovery


@dataclass
class Walk:
    """A run without failures up to a time, second by second: the steps, and what is kept."""

    times: LoopTimes
    step_ps: int
    done: int
    written: int | None = None
    copied: int | None = None
    spent: Counter[Activity] = field(default_factory=Counter)

    def to(self, end: int) -> int:
        """Walk for so long, or until all is done; return how long it took."""
        now = 0
        for activity, length in self.activities():
            rest = min(length, end - now)
            self.spent[activity] += rest
            now += rest
            self.see(now)
            if rest < length:
                return now
        return now

    def see(self, now: int) -> None:
        """Take note of what is kept by now."""
        self.now = now
        for steps, at in self.writes:
            if at <= now:
                self.written = steps
        for steps, at in self.copies:
            if at <= now:
                self.copied = steps

    def activities(self):  # type: ignore[no-untyped-def]
        """Yield what the loop does, step by step."""
        times = self.times
        self.writes: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.now = written = copied = 0
        while self.done < times.steps:
            before = self.now
            yield Activity.STEPS, self.step_ps
            if self.now < before + self.step_ps:
                return
            self.done += 1
            if times.evaluate_every and not self.done % times.evaluate_every:
                yield Activity.EVALUATION, times.evaluation_ps
            last = self.done == times.steps
            if times.save_every and (last or not self.done % times.save_every):
                yield Activity.CHECKPOINT_WAIT, max(0, written - self.now, copied - self.now)
                yield Activity.CHECKPOINT, times.stop_ps
                written = self.now + times.write_ps
                self.writes.append((self.done, written))
            elif times.copy_every and not self.done % times.copy_every:
                yield Activity.CHECKPOINT_WAIT, max(0, copied - self.now)
                yield Activity.MEMORY_COPY, times.copy_ps
            else:
                continue
            if times.copy_every:
                copied = self.now + times.exchange_ps
                self.copies.append((self.done, copied))
        yield Activity.CHECKPOINT_WAIT, max(0, written - self.now)
