"""A request inside a replica."""


class Sequence:
    """The tokens of a request that is in a replica, or on its way to one.

    request: its row in the traffic.
    blocks: keys of the blocks of its prompt; none without a prefix cache.
    tokens: known tokens, the prompt and the answer so far; those of the answer since the sequence
        last began to decode are added when it stops.
    left: tokens of the answer that are missing, counted at the same times.
    computed: known tokens whose keys are in the cache, while the sequence is not decoding.
    chunk: tokens of its prompt that the present step computes.
    pages: pages that it holds while it is a prompt, those shared with others included.
    shared: pages of cached blocks among them.
    held: cached blocks that it uses.
    key: its tokens less the tokens of the replica's clock, while it decodes.
    ends: the step after which it is complete, while it decodes; otherwise 0.
    answered_ps: when its last token was received.
    rank: the number of the rank where it is.
    """

    __slots__ = (
        "answered_ps",
        "blocks",
        "chunk",
        "computed",
        "ends",
        "held",
        "key",
        "left",
        "pages",
        "rank",
        "request",
        "shared",
        "tokens",
    )

    def __init__(
        self, request: int, prompt: int, output: int, blocks: tuple[int, ...] = ()
    ) -> None:
        self.request = request
        self.blocks = blocks
        self.tokens = prompt
        self.left = output
        self.computed = self.chunk = self.pages = self.shared = self.key = self.ends = self.rank = 0
        self.held: list[int] = []
        self.answered_ps = 0
