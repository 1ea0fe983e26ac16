"""What one step of an engine computes, and what it costs."""

from typing import NamedTuple, Protocol


class StepLoad(NamedTuple):
    """The tokens that one step of an engine computes, over all devices of a replica.

    decodes: tokens of sequences that are being generated: one for each sequence, and with
        speculation the drafted ones too.
    context: keys that the sequences which decode attend to, summed over the sequences.
    prefills: tokens of prompts.
    prefill_keys: keys that the sequences which prefill read, summed over the sequences: what is
        cached of them, and the tokens of the step.
    prefill_pairs: pairs of a prompt's token and a key that it sees, summed over the tokens: for a
        chunk of c tokens after p cached ones, `c p + c (c + 1) / 2`.
    routed: tokens that experts serve; 0 for all. Ranks that step together have fewer than the load
        of the fullest one times their number.
    """

    decodes: int
    context: int
    prefills: int = 0
    prefill_keys: int = 0
    prefill_pairs: int = 0
    routed: int = 0

    def __str__(self) -> str:
        parts = []
        if self.decodes:
            parts.append(f"{self.decodes} decoding tokens over {self.context:,} keys")
        if self.prefills:
            parts.append(f"{self.prefills:,} prompt tokens over {self.prefill_keys:,} keys")
        return ", ".join(parts) or "nothing"


class StepCosts(Protocol):
    """The time of steps on the devices, without the host."""

    def step_ps(self, load: StepLoad) -> int:
        """Return the picoseconds of one step."""
        ...

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        """Return the picoseconds of `steps` decode steps in a row.

        context: keys of the first step; each step has `growth` more than the one before.
        """
        ...
