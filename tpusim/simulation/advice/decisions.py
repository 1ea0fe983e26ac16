"""What a plan decides about its speed, and the other choices of each decision.

A decision is a set of keys that are chosen together; a choice gives them other values. Choices
follow from the plan as it is: a search asks anew after each change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from tpusim.base.divisors import divisors
from tpusim.graph import LAYER_IN, POLICIES, Attention, Remat, walk
from tpusim.models import Architecture, Transformer
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import CONTEXT_EXCHANGES, GRADIENT_REDUCTIONS, ONE_KERNEL, TWO_KERNELS, Plan
from tpusim.results.proposal import Effort
from tpusim.results.unused_keys import KeyEffects
from tpusim.simulation.fit_moves import kernel_results, saveable_names, smaller_buffers

BLOCKS = (512, 1024, 2048, 4096)
"""Sides of the blocks of attention kernels: the compiler takes all of them on v4 to 7x."""

BACKWARD_KERNELS = {
    "one backward attention kernel": ONE_KERNEL,
    "two backward attention kernels": TWO_KERNELS,
}
LOSS_TILES = (1, 2, 4, 8, 16)
MOST_MICROBATCHES = 64
EXPERT_EXCHANGES = ("all-to-all", "gather", "ring")
EXPERT_TILES = ((128, 128, 128), (256, 1024, 1024), (512, 1024, 1024), (1024, 1024, 1024), ())
"""Tiles of grouped kernels, () for those that Tokamax's kernels choose."""

SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("interleaved", 8), ("zb-h1", 1))
"""Schedules of pipelines, each with the parts of the model that a stage has."""


class Choice(NamedTuple):
    """Other values of the keys of a decision.

    decision: the name of the decision, of which a plan has one choice.
    what: the choice in words.
    keys: of a plan.
    effort: what it takes to decide so.
    """

    decision: str
    what: str
    keys: Mapping[str, Any]
    effort: Effort = Effort.FLAG


@dataclass(frozen=True)
class Decisions:
    """The decisions of a plan that leave its mesh, its numerics and its batch as they are."""

    model: Architecture
    plan: Plan

    @cached_property
    def _effects(self) -> KeyEffects:
        return KeyEffects(self.model, self.plan)

    @cached_property
    def _saveable(self) -> tuple[str, ...]:
        return saveable_names(self.model, self.plan)

    def of(self, most: Effort) -> Iterator[Choice]:
        """Yield the choices that take at most an effort, those that change most steps first."""
        makers: tuple[Callable[[], Iterable[Choice]], ...] = (
            self._remat,
            self._attention,
            self._backward,
            self._backward_blocks,
            self._microbatches,
            self._reduction,
            self._loss,
            self._labels,
            self._schedules,
            self._context,
            self._buffers,
            self._tiles,
            self._exchanges,
            self._sort_gradients,
            self._rings,
            self._state,
            self._styles,
        )
        for maker in makers:
            for choice in maker():
                if choice.effort <= most and changed_keys(self.plan, choice.keys):
                    yield choice

    def _reads(self, key: str) -> bool:
        return self._effects.reads(key)

    @cached_property
    def _has_kernels(self) -> bool:
        ops = planned_graph(self.model, self.plan).ops
        return any(isinstance(op, Attention) for op, _ in walk(ops))

    def _remat(self) -> Iterator[Choice]:
        """Yield one name more or less, and each other policy with and without kernels' results."""
        if not self._reads("remat"):
            return
        now = self.plan.remat
        for made in self._remats(now):
            yield other_remat(now, made)

    def _remats(self, now: Remat) -> Iterator[Remat]:
        kept = (*now.save, *now.offload)
        for name in self._saveable if now.policy != "none" else ():
            if name not in (*kept, LAYER_IN):
                yield replace(now, save=(*now.save, name))
        for name in now.save:
            fewer = tuple(one for one in now.save if one != name)
            yield replace(now, save=fewer)
        for policy in POLICIES:
            if policy != now.policy:
                yield replace(now, policy=policy, save=(), offload=())
                if policy != "none" and (both := kernel_results(self.model, self.plan)):
                    yield replace(now, policy=policy, save=both, offload=())
        if now.save:
            yield replace(now, save=(), offload=kept)
        if now.offload:
            yield replace(now, save=kept, offload=())
        elif LAYER_IN not in kept:
            yield replace(now, offload=(LAYER_IN,))

    def _attention(self) -> Iterator[Choice]:
        if not self._has_kernels:
            return
        for block in self._blocks():
            keys = {"attention_block": [block, block]}
            yield Choice("attention", f"attention blocks of {block}", keys)

    def _blocks(self) -> Iterator[int]:
        yield from (block for block in BLOCKS if block <= self.plan.seq_len)

    def _backward(self) -> Iterator[Choice]:
        if self._has_kernels:
            for what, value in BACKWARD_KERNELS.items():
                yield Choice("backward kernels", what, {"attention_backward": value})

    def _backward_blocks(self) -> Iterator[Choice]:
        if not self._has_kernels:
            return
        now = self.plan.attention_kernel.block_of(backward=True)
        for block in self._blocks():
            keys = {"attention_block_backward": [block, block]}
            if now == (block, block):  # also where the key is empty
                continue
            yield Choice("backward blocks", f"backward attention blocks of {block}", keys)

    def _microbatches(self) -> Iterator[Choice]:
        shards = prod(self.plan.mesh[axis] for axis in self._effects.axes("act_batch"))
        for count in divisors(self.plan.global_batch // shards):
            if count <= MOST_MICROBATCHES and (count & (count - 1)) == 0:
                what = f"{count} microbatch{'es' * (count > 1)}"
                yield Choice("microbatches", what, {"microbatches": count})

    def _reduction(self) -> Iterator[Choice]:
        if self.plan.microbatches > 1 and self._reads("gradient_reduction"):
            for value in GRADIENT_REDUCTIONS:
                what = f"gradients reduced {value.replace('-', ' ')}"
                yield Choice("reduction", what, {"gradient_reduction": value})

    def _loss(self) -> Iterator[Choice]:
        if not self.model.reads_text or self.plan.vocab_blocks > 1:
            return
        for tiles in LOSS_TILES:
            what = f"the loss in {tiles} tiles" if tiles > 1 else "the loss in one piece"
            yield Choice("loss", what, {"vocab_tiles": tiles})

    def _labels(self) -> Iterator[Choice]:
        if self._reads("loss_labels"):
            yield Choice("labels", "labels by a mask", {"loss_labels": "mask"})

    def _schedules(self) -> Iterator[Choice]:
        if self.plan.stages == 1:
            return
        now = self.plan.pipeline
        for schedule, parts in SCHEDULES:
            if (schedule, parts) != (now.schedule or "1f1b", now.virtual_stages):
                what = f"the schedule {schedule}" + f" with {parts} parts per stage" * (parts > 1)
                keys = {"schedule": schedule, "virtual_stages": parts}
                yield Choice("schedule", what, keys, Effort.SCHEDULE)

    def _context(self) -> Iterator[Choice]:
        if isinstance(self.plan.context.exchange, str) and self._reads("context_exchange"):
            for exchange in CONTEXT_EXCHANGES:
                what = f"keys and values by {exchange}"
                yield Choice("context", what, {"context_exchange": exchange})

    def _buffers(self) -> Iterator[Choice]:
        if self._reads("expert_buffer"):
            for option in smaller_buffers(self.plan.experts):
                yield Choice("buffer", option.what, option.keys)

    def _tiles(self) -> Iterator[Choice]:
        if not self._reads("expert_tiles"):
            return
        for tiles in EXPERT_TILES:
            words = " x ".join(map(str, tiles)) or "as Tokamax chooses them"
            yield Choice("tiles", f"expert tiles {words}", {"expert_tiles": list(tiles)})

    def _exchanges(self) -> Iterator[Choice]:
        if not self._reads("expert_exchange"):
            return
        for exchange in EXPERT_EXCHANGES:
            what = f"tokens to experts by {exchange}"
            yield Choice("exchange", what, {"expert_exchange": exchange})

    def _sort_gradients(self) -> Iterator[Choice]:
        if self._reads("expert_sort_gradient"):
            what = "the gradient of sorted tokens by a gather"
            yield Choice("sort", what, {"expert_sort_gradient": "gather"})

    def _rings(self) -> Iterator[Choice]:
        if self.plan.compiler.lowering == "xla" and self._reads("collective_matmul"):
            on = not self.plan.compiler.collective_matmul
            what = f"collective matmuls {'on' if on else 'off'}"
            yield Choice("rings", what, {"collective_matmul": on})

    def _state(self) -> Iterator[Choice]:
        if self._reads("offload_optimizer"):
            on_host = not self.plan.optimizer.offload
            what = f"the optimizer state {'on the host' if on_host else 'in HBM'}"
            effort = Effort.HOST if on_host else Effort.FLAG
            yield Choice("state", what, {"offload_optimizer": on_host}, effort)

    def _styles(self) -> Iterator[Choice]:
        """Yield MaxText's program of a decoder, as it has no other models."""
        compiler = self.plan.compiler
        decoder = isinstance(self.model, Transformer) and self.model.causal
        if decoder and compiler.lowering == "xla" and compiler.style == "plain":
            yield Choice("style", "MaxText's program", {"style": "maxtext"}, Effort.PROGRAM)


def tuned_values(model: Architecture, plan: Plan) -> dict[str, list[Any]]:
    """Return the values that the decisions of a plan give each key, its own first.

    These are those that take flags and another schedule; names are saved with the kernels' results
    or without.
    """
    found: dict[str, list[Any]] = {}
    names = [(), kernel_results(model, plan)]
    policies = {"remat": POLICIES, "save": names} if KeyEffects(model, plan).reads("remat") else {}
    for choice in Decisions(model, plan).of(Effort.SCHEDULE):
        if choice.decision != "remat":
            for key, value in choice.keys.items():
                found.setdefault(key, []).append(value)
    for key, values in policies.items():
        found.setdefault(key, []).extend(list(v) if key == "save" else v for v in values)
    now = plan.flat()
    return {key: _distinct([now[key], *values]) for key, values in found.items()}


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Return values without those that are the same as an earlier one."""
    found: list[Any] = []
    for value in values:
        if not any(_same(value, other) for other in found):
            found.append(value)
    return found


def changed_keys(plan: Plan, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that give a plan another value."""
    now = plan.flat()
    return {key: value for key, value in keys.items() if not _same(now[key], value)}


def _same(old: Any, new: Any) -> bool:
    """Return True for equal values, lists and tuples alike."""
    return bool(_without_lists(old) == _without_lists(new))


def _without_lists(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def other_remat(before: Remat, after: Remat) -> Choice:
    """Return the choice of another policy, in words by what it changes of the one before."""
    keys = {"remat": after.policy, "save": list(after.save), "offload": list(after.offload)}
    effort = Effort.HOST if after.offload else Effort.FLAG
    return Choice("remat", saved_words(before, after), keys, effort)


def saved_words(before: Remat, after: Remat) -> str:
    """Return what a policy saves that another does not, and the other way round, in words."""
    other = after.policy != before.policy
    parts = [f"remat {after.policy}"] if other else []
    more = [name for name in after.save if other or name not in before.save]
    fewer = [name for name in before.save if name not in (*after.save, *after.offload)]
    moved = [name for name in after.offload if name not in before.offload]
    parts += [f"{', '.join(more)} saved"] if more else []
    if fewer and not other:
        parts.append(f"{', '.join(fewer)} not saved")
    named = ["the layers' inputs" if name == LAYER_IN else name for name in moved]
    parts += [f"{', '.join(named)} on the host"] if moved else []
    return ", ".join(parts) or f"saved tensors of remat {after.policy} alone"
