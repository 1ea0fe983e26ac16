"""How much of its limits a server asks for: with larger limits it does the same."""

from dataclasses import dataclass


@dataclass(slots=True)
class PeakUse:
    """The most that a rank asks of each limit of its policy.

    A limit above this number is never reached, so a server with another limit above it does the
    same at the same times, if its steps take as long.

    sequences: that run at a time.
    tokens: of the prompts and the decoding sequences in a step, were there no limit.
    pages: that are taken, with those that a sequence asks for.
    """

    sequences: int = 0
    tokens: int = 0
    pages: int = 0

    def note_sequences(self, count: int) -> None:
        """Note that so many sequences run."""
        if count > self.sequences:
            self.sequences = count

    def note_tokens(self, count: int) -> None:
        """Note that so many tokens are to be computed in a step."""
        if count > self.tokens:
            self.tokens = count

    def note_pages(self, count: int) -> None:
        """Note that so many pages are needed."""
        if count > self.pages:
            self.pages = count
