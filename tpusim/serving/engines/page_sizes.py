"""The page size that an engine chooses by itself.

Source: tpu-inference 0.32.0 (PyPI), layers/vllm/backends/flash_attn.py (get_page_size,
get_min_page_size) and flash_attn_mla.py (get_page_size).
"""

from tpusim.base.errors import PlanError

LEAST_PAGE, MOST_PAGE = 16, 256
LONGEST_SPLIT = 8192
"""Tokens of the longest sequences whose pages are a sixteenth of them."""

PAGES_OF_A_SEQUENCE = 16
LATENT_PAGE = 1024
TABLE_BYTES = 1024 * 1024 // 2
"""Bytes of scalar memory that the tables of pages may take, of 1 MiB."""

ENTRY_BYTES = 4

UNKNOWN_LENGTH = 32768
"""Tokens of the longest sequence where nobody states them: assumed."""


def page_size(rule: str, model_len: int, max_num_seqs: int, latent: bool = False) -> int:
    """Return the tokens of a page by a rule of `engines.toml`.

    rule: `sixteenth`, that of tpu-inference.
    model_len: tokens of the longest sequence; 0 for `UNKNOWN_LENGTH`.
    latent: the model has latent attention.

    Raise PlanError for another rule.

    >>> page_size("sixteenth", 2048, 256), page_size("sixteenth", 40960, 256)
    (128, 128)
    """
    if rule != "sixteenth":
        raise PlanError(f"no rule of page sizes is called {rule!r}; write page_size")
    if latent:
        return LATENT_PAGE
    length = model_len or UNKNOWN_LENGTH
    entries = TABLE_BYTES // max_num_seqs // ENTRY_BYTES
    fitting = _power_of_two(-(-length // max(entries, 1)))
    return max(_wanted(length), fitting)


def _wanted(model_len: int) -> int:
    if model_len > LONGEST_SPLIT:
        return LEAST_PAGE
    return min(max(_power_of_two(model_len) // PAGES_OF_A_SEQUENCE, LEAST_PAGE), MOST_PAGE)


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()
