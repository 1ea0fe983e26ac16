"""Nearly valid inputs of twelve kinds: answered, or refused in one sentence."""

import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from extent import thorough
from fuzz_inputs import KINDS, inputs
from fuzz_promises import TooMuchError, one_parser, outcome

pytestmark = pytest.mark.usefixtures("advised")

SEEDS = Path(__file__).parent / "seeds"
FOUND = sorted(path for path in SEEDS.glob("*/*") if path.parent.name in KINDS)
USUAL = {kind: 10 if kind == "hugging_face" else 20 for kind in KINDS}
"""Inputs of each kind otherwise; a config whose step does not fit has ways to fit searched."""

ALL = {kind: 2000 if kind == "hlo" else 1200 for kind in KINDS}
"""Inputs of each kind under `-m thorough`: fourteen thousand."""


@pytest.fixture
def parser() -> Iterator[None]:
    with one_parser():
        yield


def broken_promise(kind: str, data: bytes, folder: Path) -> str:
    """What is wrong with the outcome of an input, or its outcome."""
    try:
        return outcome(kind, data, folder)
    except (Exception, TooMuchError):
        return traceback.format_exc(limit=-4)


@pytest.mark.parametrize(
    ("kind", "count"),
    [*USUAL.items(), *(thorough(kind, count) for kind, count in ALL.items())],
)
@pytest.mark.usefixtures("parser")
def test_every_input_is_answered_or_refused(kind: str, count: int, tmp_path: Path) -> None:
    """Keep the file of one that is not as `seeds/KIND/WHAT_IS_WRONG`."""
    if kind in ("hlo", "header"):
        pytest.importorskip("jaxlib.xla_client")
    found: Counter[str] = Counter()
    wrong = []
    for number, data in enumerate(inputs(kind, count)):
        said = broken_promise(kind, data, tmp_path)
        found[said if said in ("taken", "refused") else "wrong"] += 1
        if said not in ("taken", "refused"):
            (tmp_path / f"wrong-{number}").write_bytes(data)
            wrong.append(f"{tmp_path}/wrong-{number}: {said}")
    assert not wrong, f"{found}\n" + "\n".join(wrong[:20])
    assert min(found["taken"], found["refused"]) > count / 10, found


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.usefixtures("parser")
def test_what_was_found_stays_mended(path: Path, tmp_path: Path) -> None:
    if path.parent.name in ("hlo", "header"):
        pytest.importorskip("jaxlib.xla_client")
    assert outcome(path.parent.name, path.read_bytes(), tmp_path) in ("taken", "refused")
