"""Seconds of linear attention in the steps of a server."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpusim.costs.compute import hbm_seconds
from tpusim.costs.linear_attention import linear_attention_seconds
from tpusim.hardware import Device
from tpusim.program import LINEAR_CHUNK, AttentionLoad, CachedLinearWork


@dataclass(frozen=True, slots=True)
class CachedLinearRates:
    """The seconds of a kernel by what its load consists of.

    ranks, drafted: see `CachedAttentionWork`.
    decoded: seconds per sequence that decodes, whose state is read and written.
    prompt: seconds per token of a prompt, computed in chunks.
    launch: of the kernel.
    """

    ranks: float
    drafted: int
    decoded: float
    prompt: float
    launch: float

    @classmethod
    def of(cls, work: CachedLinearWork, device: Device) -> "CachedLinearRates":
        """Return the rates of a kernel. Raise PlanError for a dtype without a matrix rate."""
        launch = device.costs.op_launch
        token = work.token

        def seconds(tokens: int, state: float) -> float:
            read, written = (
                tokens * float(each) + state for each in (token.read_bytes, token.write_bytes)
            )
            one = replace(token, q_len=tokens, read_bytes=read, write_bytes=written)
            return float(linear_attention_seconds(one, device)) - launch

        state = float(work.state_bytes)
        memory = float(hbm_seconds(state, state, device))
        decoded = max(seconds(work.drafted, 0.0), memory)
        prompt = seconds(LINEAR_CHUNK, 0.0) / LINEAR_CHUNK
        return cls(float(work.ranks), work.drafted, decoded, prompt, launch)

    def seconds(self, load: AttentionLoad | tuple[float, ...]) -> float:
        """Return the seconds of a load of all ranks: sequences that decode, then prompts."""
        decodes, context, prefills, _, _ = map(float, load)
        return prefills / self.ranks * self.prompt + self.decoding(decodes)(context)

    def decoding(self, decodes: float) -> Callable[[float], float]:
        """Return the seconds of so many tokens of sequences that decode, whatever their keys."""
        found = decodes / self.ranks / self.drafted * self.decoded + self.launch
        return lambda _: found


def cached_linear_seconds(work: CachedLinearWork, device: Device) -> float:
    """Return the seconds of a kernel on its load. Raise PlanError as `CachedLinearRates.of`."""
    return CachedLinearRates.of(work, device).seconds(work.load)
