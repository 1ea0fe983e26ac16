"""Text of HLO as large as asked: a real program, with its computations again and again."""

import gzip
import re
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "tests/data/hlo/plain/scan_mlp_v5e_2x2.hlo.gz"


def large_text(size: float) -> str:
    """Return the program with copies of its computations under new names, in so many bytes."""
    plain = gzip.decompress(PROGRAM.read_bytes()).decode()
    first = re.search(r"^%", plain, re.MULTILINE)
    if first is None:
        raise ValueError(f"{PROGRAM} has no computations")
    head, bodies = plain[: first.start()], plain[first.start() : plain.index("\nENTRY") + 1]
    copies = (
        re.sub(r"(%[\w.\-]+)", rf"\1.c{copy}", bodies)
        for copy in range(int((size - len(plain)) / len(bodies)) + 1)
    )
    return "".join([head, bodies, *copies, plain[plain.index("\nENTRY") :]])
