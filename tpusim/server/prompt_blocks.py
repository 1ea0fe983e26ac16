"""The blocks of prompts in which a prefix cache keeps their pages."""

from tpusim.base.errors import ServerError
from tpusim.server.policy import Policy
from tpusim.traffic import Requests


def block_of(requests: Requests, policy: Policy) -> int:
    """Return the tokens of a cached block; 0 where no prefix is cached or none is known.

    It is the larger of a page and of a block whose hash is known.
    """
    if not policy.prefix_cache or not requests.prefixes:
        return 0
    small, large = sorted((requests.block, policy.page_size))
    if small < 1 or large % small:
        raise ServerError(
            f"the prefix cache has pages of {policy.page_size} tokens, and the traffic has hashes "
            f"of blocks of {requests.block} tokens: one has to divide the other; "
            f"choose another page_size, or prefix_cache = false"
        )
    return large


def prompt_blocks(requests: Requests, request: int, block: int) -> tuple[int, ...]:
    """Return a key for each whole block of a prompt, which stands for all tokens up to its end."""
    whole = int(requests.prompt[request]) // requests.block
    each = block // requests.block
    keys: list[int] = []
    key = 0
    for number, known in enumerate(requests.prefixes[request][:whole], 1):
        key = hash((key, known))
        if number % each == 0:
            keys.append(key)
    return tuple(keys)
