"""What tpusim promises for any input: finite numbers or one sentence, soon, and in little memory.

`outcome` hands an input to the command line (or to Python) and returns `taken` or `refused`. It
raises AssertionError where a promise is broken.
"""

import io
import itertools
import json
import math
import re
import resource
import signal
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commands import LONGEST_SENTENCE, run
from compiler_parts import HloParser
from fuzz_inputs import BASES, result_text
from fuzz_values import toml_text

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.report import document

MOST_CPU_S = 20
MOST_WALL_S = 120
TICK_CPU_S = 2
"""The CPU seconds that threads can use in a second: more are the clock's error."""
MOST_BYTES = 2 * 2**30
NO_NUMBER = re.compile(r"(?<![\w-])(nan|-?inf|None|NaT)(?![\w-])")
SPEC = re.compile(r"\bP\((?:None|'\w+'|\((?:'\w+',?\s*)+\)|[,\s])*\)")
"""A PartitionSpec of JAX, whose `None` is a dimension that no axis divides."""
PYTHONS_OWN = re.compile("unexpected keyword argument|missing [0-9]+ required")
"""What Python itself says of a call whose keywords are not those of the function."""
SIGNED = re.compile(
    "error|ratio|tau|signed|versions|plan|mean|median|difference|parts|phases|settings"
)
"""Parts of the names of numbers that may be negative: differences, and what others wrote."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

COMMANDS: Mapping[str, tuple[str, list[str]]] = {
    "run_file": ("run.toml", ["simulate", "INPUT"]),
    "maxtext": ("base.yml", ["simulate", "--maxtext", "INPUT", "--slice", "v5e-4"]),
    "csv": ("runs.csv", ["validate", "INPUT", "--allow-failures", "--quiet"]),
    "hlo": ("a.hlo", ["replay", "INPUT", "--quiet"]),
    "header": ("a.hlo", ["replay", "INPUT", "--quiet"]),
    "result": ("tampered.json", ["compare", "INPUT", "RESULT"]),
    "rates": ("sample.csv", ["input-rate", "INPUT"]),
    "serving": ("server.toml", ["serve", "INPUT"]),
    "sweep": ("sweep.toml", ["sweep", "INPUT", "--workers", "1", "--quiet"]),
}
"""The name of an input's file and its command, by kind."""

TEXT_ALONE = ("rates",)
"""The kinds whose commands print no JSON."""

HF_RUN = """
[slice]
name = "v5e-4"
[model]
hf = "config.json"
[plan]
mesh = { fsdp = 4 }
seq_len = 128
global_batch = 4
"""


class TooMuchError(BaseException):
    """The time is up. No `except Exception` takes it."""


def outcome(kind: str, data: bytes, folder: Path) -> str:
    """Whether an input is `taken` or `refused`.

    What a summary simulates besides the step is simulated for each fourth run file and each
    sixteenth other input.
    """
    whole = zlib.crc32(data) % 16 in ((0, 5, 10, 15) if kind == "run_file" else (0,))
    with _limits(), nullcontext() if whole else _the_step_alone():
        return _python(data) if kind == "python" else _command(kind, data, folder)


@contextmanager
def _the_step_alone() -> Iterator[None]:
    """Without the steps of a perfect compiler and of MaxText, and the changes of reasons."""
    names = ("perfect_compiler", "as_maxtext")
    with (
        patch.multiple("tpusim.cli.simulate_command", **dict.fromkeys(names, lambda _: None)),
        patch("tpusim.simulation.advice.reasons.MOST_SIMULATIONS", 0),
    ):
        yield


@contextmanager
def _limits() -> Iterator[None]:
    """Raise TooMuchError for what takes longer, MemoryError for what takes more memory.

    Seconds are ticks of a timer, so that a machine that was suspended in between counts one. An
    exception that is lost, as in a callback of the garbage collector, is raised at the next tick
    again.
    """
    ticks = itertools.count(1)
    began = time.process_time()

    def tick(number: int, frame: object) -> None:
        passed = next(ticks)
        busy = min(passed * TICK_CPU_S, time.process_time() - began)
        if busy > MOST_CPU_S or passed > MOST_WALL_S:
            raise TooMuchError(f"more than {MOST_CPU_S} s of CPU or {MOST_WALL_S} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    handler = signal.signal(signal.SIGALRM, tick)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def one_parser() -> Iterator[None]:
    """All HLO is parsed in one child process, which takes half a second to start."""
    with (
        HloParser() as parser,
        patch("tpusim.compiler.hlo.read.HloParser", lambda: nullcontext(parser)),
    ):
        yield


def _python(data: bytes) -> str:
    """An expression that returns a result."""
    scope = {"ts": ts, "Path": Path, "nan": math.nan, "inf": math.inf}
    try:
        result = eval(data.decode(), scope)
    except TpusimError as error:
        _check_sentence(str(error), Path())
        return "refused"
    except TypeError as error:
        if not PYTHONS_OWN.search(str(error)):
            raise
        return "refused"
    _check_text(str(result))
    check_document(document(result))
    return "taken"


def _command(kind: str, data: bytes, folder: Path) -> str:
    arguments = _arguments(kind, data, folder)
    as_json = zlib.crc32(data) % 8 < 4 and kind not in TEXT_ALONE
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = run([*arguments, "--json"] if as_json else arguments)
    said = errors.getvalue()
    if code == 2:
        assert said.startswith("error: "), said
        assert said.count("\n") == 1, said
        assert out.getvalue() == ""
        _check_sentence(said.strip("\n"), folder)
        assert " object at 0x" not in said, said
        return "refused"
    assert code in ((0, 3) if kind == "sweep" else (0,)), (code, said, out.getvalue()[-2000:])
    if as_json:
        check_document(json.loads(out.getvalue(), parse_constant=_no_constant))
    else:
        _check_text(out.getvalue().replace("reader_bandwidth = inf", ""))
    return "taken"


def _arguments(kind: str, data: bytes, folder: Path) -> list[str]:
    """The command line for an input, whose file is written."""
    path = folder / "run.toml"
    if kind == "set":
        path.write_text(toml_text(BASES[zlib.crc32(data) % len(BASES)]), "utf-8")
        return ["simulate", str(path), *(w for text in json.loads(data) for w in ("--set", text))]
    if kind == "hugging_face":
        (folder / "config.json").write_bytes(data)
        path.write_text(HF_RUN, "utf-8")
        return ["simulate", str(path)]
    name, words = COMMANDS[kind]
    (folder / name).write_bytes(data)
    if "RESULT" in words:
        (folder / "result.json").write_text(result_text(), "utf-8")
        words = [str(folder / "result.json") if word == "RESULT" else word for word in words]
    return [str(folder / name) if word == "INPUT" else word for word in words]


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def _check_sentence(text: str, folder: Path) -> None:
    said = text.replace(f"{folder}/", "")
    assert said.strip(), "an empty message"
    assert len(said) <= LONGEST_SENTENCE, f"a message of {len(said)} characters: {said[:300]}"
    assert not CONTROL.search(text), f"control characters in {text!r}"


def _check_text(text: str) -> None:
    assert not CONTROL.search(text), f"control characters in {text!r}"
    text = SPEC.sub("", text)
    found = NO_NUMBER.search(text)
    assert not found, text[max(0, found.start() - 200) : found.end() + 80]


def check_document(found: Mapping[str, Any]) -> None:
    """Numbers are finite, seconds, bytes and FLOPs are not negative, and no MFU is above 1."""
    for path, number in _numbers(found, ""):
        assert math.isfinite(number), f"{path} is {number}"
        signed = SIGNED.search(path)
        assert number >= 0 or signed, f"{path} is {number}"
    plan = found.get("plan") or {}
    narrow = any(str(value) in ("int8", "fp8") for value in _leaves(plan))
    if isinstance(found.get("mfu"), float) and not narrow:
        assert found["mfu"] <= 1, f"mfu is {found['mfu']}"
        assert found["hfu"] <= 1, f"hfu is {found['hfu']}"


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _numbers(each, f"{path}[{at}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)
    else:
        yield value
