"""Compile plans that need about as much HBM as there is, or more: python limit.py

How far does the compiler go before it refuses? Eight layers on 16 devices, with as many sequences
each as filled 1.02 to 1.6 of HBM by the plans of the day. No rule was learnt from them.
`limit.json` has a row for each, with what the compiler took, or what its last attempt needed where
it refused. A run compiles what is missing.
"""

import json
from pathlib import Path
from typing import Any

from sample import Twin, slice_of

LIMIT = Path(__file__).with_name("limit.json")
TIME_LIMIT_S = 400.0
MODEL = {"name": "twin", "layers": 8, "embed": 2048, "mlp": 8192, "heads": 16, "vocab": 32768}
DEVICES = 16
SIDES = ("plan", "program")
PLANS = (
    ("v6e:4x4", "minimal", True, 18),
    ("v6e:4x4", "minimal", True, 22),
    ("v6e:4x4", "full", True, 63),
    ("v5e:4x4", "minimal", True, 10),
    ("v5e:4x4", "full", True, 33),
    ("v4:2x2x4", "none", True, 8),
    ("v4:2x2x4", "minimal", True, 22),
    ("v5p:2x2x4", "full", False, 51),
    ("v6e:4x4", "full", False, 15),
    ("v4:2x2x4", "none", False, 12),
    ("7x:2x2x2", "minimal", True, 51),
    ("v5e:4x4", "none", False, 10),
    ("v4:2x2x4", "none", True, 6),
    ("v6e:4x4", "full", False, 12),
    ("v4:2x2x4", "full", False, 13),
    ("v5e:4x4", "minimal", False, 6),
    ("v6e:4x4", "full", False, 18),
    ("v5p:2x2x4", "none", False, 33),
    ("v6e:4x4", "none", True, 7),
    ("v4:2x2x4", "minimal", False, 15),
)  # fmt: skip
"""Slice, remat, whether the layers are scanned, and sequences of a device."""


def twins() -> list[Twin]:
    """Return the plans."""
    return [_twin(number, *given) for number, given in enumerate(PLANS)]


def _twin(number: int, pod: str, remat: str, scanned: bool, sequences: int) -> Twin:
    plan: dict[str, Any] = {"mesh": {"fsdp": DEVICES}, "seq_len": 4096, "remat": remat}
    plan["global_batch"] = DEVICES * sequences
    if not scanned:
        plan["scan_layers"] = False
    return Twin(number, slice_of(pod), MODEL, plan, "")


def taken(twin: Twin) -> dict[str, Any]:
    """Return what the compiler took of a plan, or needed at last where it refused it."""
    import tpusim as ts

    made = ts.check(*twin.arguments(), time_limit=TIME_LIMIT_S)
    hbm = made.comparison.hbm
    return {
        "number": twin.number,
        "plan_hbm_bytes": hbm.plan_bytes,
        "program_hbm_bytes": hbm.program_bytes,
        "usable_bytes": hbm.usable_bytes,
        "refused": hbm.refused,
        "versions": dict(made.compiled.versions),
    }


def rows() -> list[dict[str, Any]]:
    """Return the rows of earlier runs."""
    return json.loads(LIMIT.read_text()) if LIMIT.exists() else []


def main() -> None:
    """Compile what is missing, and print how full HBM is by plan and by program."""
    found = {row["number"]: row for row in rows()}
    for twin in twins():
        if twin.number not in found:
            found[twin.number] = taken(twin)
            LIMIT.write_text(json.dumps([*found.values()], indent=1) + "\n")
        row = found[twin.number]
        plan, program = (row[f"{side}_hbm_bytes"] / row["usable_bytes"] for side in SIDES)
        said = "refused" if row["refused"] else "compiled"
        pod, remat, scanned, sequences = PLANS[twin.number]
        how = "" if scanned else ", not scanned"
        print(f"{pod}, remat {remat}{how}, {sequences}: {plan:.2f} -> {program:.3f}, {said}")


if __name__ == "__main__":
    main()
