"""The result of a plan: what its model, its plan and its placement add to the numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tpusim.engine import Timeline
from tpusim.graph import Graph
from tpusim.hardware import Placement, Slice
from tpusim.models import Transformer
from tpusim.partition import CIRCULAR, Plan
from tpusim.program import Program, Single
from tpusim.result import BUBBLE, Result
from tpusim.totals import distinct, unasked
from tpusim.unused import unused

CONVENTION = (
    "model FLOPs: matmuls and attention, causal attention at half, LM head counted, lookup not, "
    "against the bf16 peak; HFU adds recomputation"
)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How the result came about: dimensions replicated, placement given or chosen, the network.

    unread: names of `save` and `offload` that are not saved, as no backward pass reads them.
    """

    dropped: tuple[tuple[str, int, str, int], ...] = ()
    placement_given: bool = False
    network: str = "flows"
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Result):
    """One step of a model under a plan. tokens: of the step. unasked: see `totals.unasked`."""

    model: Transformer
    plan: Plan
    tokens: int
    unasked: tuple[tuple[str, str, int], ...]
    verdicts: Verdicts

    @property
    def planned(self) -> "PlanResult":
        """The same."""
        return self

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the model's FLOPs a second, over the bf16 peak."""
        return float(self.flops.model) / self.peak_flops / self.step_time_s

    @property
    def placement_given(self) -> bool:
        """Whether the user gave the placement; otherwise it is the best of the candidates."""
        return self.verdicts.placement_given

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, all chips together."""
        return self.tokens / self.step_time_s

    @property
    def tflops_per_device(self) -> float:
        """Model TFLOP/s of one device, as MaxText logs them."""
        return float(self.flops.model) / self.pod.devices / self.step_time_s / 1e12

    @property
    def bubble(self) -> float:
        """The share of the step in which a stage of a pipeline waits, the mean of all stages.

        Of a circular pipeline it is the share of the trips in which it computes what nobody reads.
        """
        if self.plan.pipeline != CIRCULAR:
            return self.breakdown_s.get(BUBBLE, 0.0) / self.step_time_s
        idle, rounds = self.plan.stages - 1, self.plan.microbatches * self.plan.virtual_stages
        return idle / (rounds + idle)

    @property
    def convention(self) -> str:
        """Which FLOPs are the model's."""
        return CONVENTION

    @property
    def rates(self) -> str:
        """Utilisation, tokens a second, and FLOP/s of a device."""
        return (
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}, "
            f"{self.tokens_per_s:,.0f} tokens/s, {self.tflops_per_device:.1f} TFLOP/s a device"
        )

    def called(self, op: Single) -> str:
        """Its name, which is made of what the model calls its tensors."""
        return op.name

    def about(self) -> Iterator[tuple[str, str]]:
        """The plan, the placement, and the network where it is not the usual one."""
        yield "plan", str(self.plan)
        chosen = "given" if self.placement_given else "chosen"
        placed = f"{self.placement} ({chosen})" if self.placement.written else "nothing to place"
        yield "placement", placed
        if self.verdicts.network != "flows":
            yield "network", f"{self.verdicts.network}: every message over every link"

    def notes(self) -> Iterator[tuple[str, str]]:
        """What is given and does nothing, and what nobody asked for."""
        return (("note", text) for text in self._remarks())

    def _remarks(self) -> Iterator[str]:
        if self.verdicts.unread:
            yield f"not saved, as no backward pass reads it: {', '.join(self.verdicts.unread)}"
        yield from unused(self.model, self.plan)
        for dim, size, axis, shards in self.verdicts.dropped:
            yield f"{dim} ({size}) is smaller than {axis} ({shards}): replicated over it"
        groups: dict[tuple[str, int], list[str]] = {}
        for what, tensor, times in self.unasked:
            groups.setdefault((what, times), []).append(tensor)
        for (what, times), tensors in groups.items():
            yield f"nobody asked for the {what} of {', '.join(tensors)} ({times} a step)"

    def facts(self) -> Mapping[str, Any]:
        """Model, plan, and what comes of them."""
        return {
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_device": self.tflops_per_device,
            "model": asdict(self.model) | {"parameters": self.model.parameter_count},
            "plan": _plain(asdict(self.plan)),
            "network": self.verdicts.network,
            "replicated": [_named(entry) for entry in self.verdicts.dropped],
            "unasked": [
                {"collective": what, "tensor": tensor, "count": count}
                for what, tensor, count in self.unasked
            ],
        }


def make_result(
    model: Transformer, plan: Plan, pod: Slice, placement: Placement, graph: Graph,
    programs: tuple[Program, ...], timeline: Timeline, verdicts: Verdicts,
) -> PlanResult:  # fmt: skip
    """The result of a timeline of one lane for each of the programs."""
    return PlanResult.of(
        pod, placement, programs, timeline,
        model=model, plan=plan, tokens=graph.tokens * plan.microbatches, verdicts=verdicts,
        unasked=tuple(
            (what, tensor, most * times)
            for body, _, most in distinct(programs) for what, tensor, times in unasked(body)
        ),
    )  # fmt: skip


def _named(entry: tuple[str, int, str, int]) -> dict[str, Any]:
    return dict(zip(("dimension", "size", "axis", "shards"), entry, strict=True))


def _plain(value: Any) -> Any:
    """Mappings and sequences of whatever kind as those of JSON."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
