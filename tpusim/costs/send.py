"""The messages between the stages of a pipeline: one way, to the twin of a neighbouring stage."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tpusim.costs.collective import dcn_delay_seconds, delay_seconds
from tpusim.costs.communicate import Machine
from tpusim.costs.links import DCN
from tpusim.costs.route import WHOLE, dcn_route, shift_route
from tpusim.costs.tasks import Task, Way
from tpusim.hardware.placement import DCN_PREFIX
from tpusim.phase import Phase
from tpusim.program import Call, CollectiveKind, Send, TopOp

NEXT, PREVIOUS, FIRST, LAST = "next", "previous", "first", "last"


@dataclass(slots=True)
class Sends:
    """The sends of the stages of one pipeline; those that cost the same share their task."""

    machine: Machine
    stages: int
    _known: dict[tuple[object, ...], Task] = field(default_factory=dict)

    def ways(self, stage: int, body: Iterable[TopOp], phases: Mapping[str, Phase]) -> Iterator[Way]:
        """How what each segment of a stage sends gets to each other stage.

        phases: of each segment. Raises ValueError for a stage that is no neighbour on the ring of
        stages.
        """
        found: dict[tuple[str, int, float], Send] = {}
        for call in body:
            if isinstance(call, Call):
                for send in call.sends:
                    found.setdefault((call.segment, send.to, float(send.bytes)), send)
        for (segment, to, nbytes), send in found.items():
            task = self._task(send, stage, segment, phases[segment])
            yield Way(segment=segment, to=to, bytes=nbytes, task=task)

    def _task(self, send: Send, stage: int, segment: str, phase: Phase) -> Task:
        where = _where(stage, send.to, self.stages)
        key = (segment, phase, where, send.axes, float(send.bytes))
        task = self._known.get(key)
        if task is None:
            alike = sum(known[:3] == key[:3] for known in self._known)
            name = f"{segment} to {where}" + (f" ({alike + 1})" if alike else "")
            task = self._known[key] = _task(send, name, where, phase, self.machine)
        return task


def _where(stage: int, to: int, stages: int) -> str:
    """Which neighbour a stage is of another one."""
    if to - stage in (1, -1):
        return NEXT if to > stage else PREVIOUS
    if {stage, to} == {0, stages - 1}:
        return LAST if to else FIRST
    raise ValueError(f"stage {stage} of {stages} sends to stage {to}, which is no neighbour")


def _task(send: Send, name: str, where: str, phase: Phase, machine: Machine) -> Task:
    """The way of a message over DCN, or over the torus alone on its links.

    Over DCN as much arrives at a stage as it sends, but at the first and the last; what it receives
    is counted where it sends.
    From the last stage to the first it takes the ring's way on, and all links of a line back.
    """
    chip, nbytes, label = machine.chip, float(send.bytes), "+".join(send.axes)
    if any(axis.startswith(DCN_PREFIX) for axis in send.axes):
        path = dcn_route(CollectiveKind.PERMUTE, 2, machine.cards.links())
        stream, delay = DCN, dcn_delay_seconds(CollectiveKind.PERMUTE, path, chip)
    else:
        spans = tuple(span for axis in send.axes for span in machine.placement.spans(axis))
        back, round_ = where in (PREVIOUS, LAST), where in (FIRST, LAST)
        path = shift_route(spans, machine.pod.topology, back, round_)
        stream, delay = f"ici:{','.join(send.axes)}", delay_seconds(path, chip)
    return Task(
        name=name, phase=phase, label=label, stream=stream, delay_s=delay,
        bytes=nbytes * path.share / WHOLE, uses=path.uses,
    )  # fmt: skip
