"""The child process that compiles: when it is ended, and what it leaves."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from time import monotonic, sleep
from typing import Any

import pytest
from compiler_parts import UNTIL, Until
from extent import sample, thorough

import tpusim as ts
from tpusim.base import CompileError
from tpusim.compiler import Compiled, MemoryReport, compile_apart

POD = ts.Slice("v5e", "2x2")
MODULE = "HloModule jit_step, is_scheduled=true\n\nENTRY %main (p: f32[]) -> f32[] {\n  x\n}\n\n"
ASSIGNMENT = "allocation 0: size 4000, parameter 0, maybe-live-out:\n"
USAGE = "Memory Space: default (color=0)\nTotal bytes: 4100 (4KiB)\n"
HEAD = (
    "import json, os, signal, sys, time\n"
    "folder = sys.argv[1]\n"
    "def dump(what, text):\n"
    "    with open(f'{folder}/dump/module_0000.jit_step.after_optimizations{what}', 'w') as file:\n"
    "        file.write(text)\n"
)
REPORTS = (
    f"dump('-buffer-assignment.txt', {ASSIGNMENT!r})\ndump('-memory-usage-report.txt', {USAGE!r})\n"
)
WHOLE = f"{REPORTS}dump('_after_buffer_assignment.txt', {MODULE!r})\n"

TOO_LARGE = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(33.20G) exceeds available HBM (31.25G)."
)
REFUSED = f"""{REPORTS}
with open(f'{{folder}}/error.json', 'w') as file:
    json.dump({{'kind': 'JaxRuntimeError', 'text': {TOO_LARGE!r}}}, file)
"""

Run = Callable[..., Compiled]


@pytest.fixture
def compile_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Compile with a script in place of the compiler, and temporary folders in `tmp_path`."""

    def run(script: str, until: Until = "schedule", time_limit: float | None = 30) -> Compiled:
        monkeypatch.setattr(compile_apart, "_BOOT", HEAD + script)
        return compile_apart.compile_apart(None, "step", POD, {}, until, time_limit)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compile_apart, "write_request", lambda *_: None)
    return run


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until(done: Callable[[], bool], seconds: float = 20) -> bool:
    late = monotonic() + seconds
    while not done() and monotonic() < late:
        sleep(0.05)
    return done()


@pytest.mark.parametrize("extent", UNTIL)
def test_a_program_that_is_too_large_is_the_last_that_the_compiler_tried(
    compile_with: Run, tmp_path: Path, extent: Until
) -> None:
    dumped = f"dump('.oom_intermediate_module.txt', {MODULE!r})\n"
    found = compile_with(f"{REFUSED}{dumped}sys.exit(1)", extent)
    assert (found.hlo, found.until) == (MODULE, "schedule")
    assert found.refusal.startswith("it needs 33.2 GiB of HBM per device, and 31.2 GiB can be used")
    assert found.memory is not None
    assert found.memory.total == 4100
    path = tmp_path / "kept.hlo"
    found.save(path)
    assert ts.xla.load(path).refusal == found.refusal
    assert f"refused      {found.refusal}" in str(found)


def test_one_that_is_not_in_the_dump_is_a_sentence(compile_with: Run) -> None:
    with pytest.raises(CompileError, match=r"^step does not fit v5e:2x2: it needs 33.2 GiB of HBM"):
        compile_with(f"{REFUSED}sys.exit(1)")


@pytest.mark.parametrize("after", ["time.sleep(60)", "pass"])
def test_the_schedule_is_taken_whether_the_compiler_goes_on_or_has_ended(
    compile_with: Run, tmp_path: Path, after: str
) -> None:
    found = compile_with(f"{WHOLE}{after}")
    assert (found.hlo, found.until) == (MODULE, "schedule")
    assert found.memory is not None
    assert (found.memory.total, found.memory.arguments, found.memory.aliased) == (4100, 4000, 4000)
    assert found.seconds is not None
    assert found.seconds < 30
    assert list(tmp_path.iterdir()) == []


def test_a_program_with_code_is_awaited_and_read(compile_with: Run, tmp_path: Path) -> None:
    """The dump is whole long before; the child writes the program when the compiler has ended."""
    memory = MemoryReport(arguments=1, outputs=2, aliased=3, heap=4, total=7)
    made = tmp_path.parent / f"{tmp_path.name}.hlo"
    Compiled(name="dump", data=MODULE.encode(), memory=memory).save(made)
    copy = f"import shutil\nshutil.copy({str(made)!r}, folder + '/made.hlo')"
    found = compile_with(f"{WHOLE}time.sleep(0.5)\n{copy}", "code")
    assert (found.hlo, found.until, found.memory, found.name) == (MODULE, "code", memory, "step")
    assert found.seconds is not None
    assert found.seconds > 0.5
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_still_written_is_awaited(compile_with: Run) -> None:
    """It pauses within a line, after a computation that ends as modules do."""
    first, rest = MODULE.replace("ENTRY", "%other () -> f32[] {\n}\n\nENTRY").split("ENTRY")
    written = (
        f"{REPORTS}file = open(f'{{folder}}/dump/m.after_optimizations_after_buffer_assignment.txt'"
        f", 'w', buffering=1)\nfile.write({first!r} + 'ENT')\ntime.sleep(0.5)\n"
        f"file.write('RY' + {rest!r})\nfile.flush()\ntime.sleep(60)"
    )
    assert compile_with(written).hlo == f"{first}ENTRY{rest}"


@pytest.mark.parametrize("extent", sample(UNTIL, 2))
def test_what_takes_too_long_is_ended_with_all_that_it_started(
    compile_with: Run, tmp_path: Path, extent: Until
) -> None:
    pids = tmp_path.parent / f"{tmp_path.name}.pids"
    script = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(60)"
    )
    start = monotonic()
    with pytest.raises(CompileError, match=r"^step was not compiled for v5e:2x2 in 3 s; give a"):
        compile_with(script, extent, time_limit=3)
    assert monotonic() - start < 20
    assert list(tmp_path.iterdir()) == []
    assert until(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise here, also where a shell in the background had them ignored.

    The garbage collector is off, as what is raised in a callback of it is lost.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("extent", UNTIL)
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_nothing(compile_with: Run, tmp_path: Path, extent: Until) -> None:
    pids = tmp_path.parent / f"{tmp_path.name}.pids"
    script = f"open({str(pids)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"

    def interrupt() -> None:
        until(lambda: pids.exists() and pids.read_text() != "")
        signal.raise_signal(signal.SIGINT)

    timer = Timer(0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compile_with(script, extent)
    timer.join()
    assert list(tmp_path.iterdir()) == []
    assert until(lambda: gone(int(pids.read_text())))


@pytest.mark.parametrize("number", [signal.SIGKILL, thorough(signal.SIGTERM)])
def test_a_parent_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    boot = (
        "import sys, time; sys.path[:] = sys.argv[3:]; "
        "import tpusim.compiler.compile_request as c; "
        "c.compile_request = lambda folder: ((folder / 'pid').write_text(str(c.os.getpid())), "
        "time.sleep(60)); c.main(*sys.argv[1:3])"
    )
    parent = (
        "import tempfile; from tpusim.compiler import compile_apart as s; import tpusim as ts; "
        f"tempfile.tempdir = {str(tmp_path)!r}; s._BOOT = {boot!r}; "
        "s.write_request = lambda *_: None; "
        "s.compile_apart(None, 'step', ts.Slice('v5e', '2x2'), {}, 'schedule', None)"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as running:
        assert until(lambda: any(file.read_text() for file in tmp_path.glob("*/pid")), 60)
        (file,) = tmp_path.glob("*/pid")
        child = int(file.read_text())
        running.send_signal(number)
    assert until(lambda: gone(child))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Used 41.20G of 31.25G hbm."),
            "step does not fit v5e:2x2: it needs 41.2 GiB of HBM per device, and 31.2 GiB can",
        ),
        (("JaxRuntimeError", "No such compile option: 'xla_no'"), "'xla_no', which this libtpu"),
        (
            ("JaxRuntimeError", "INTERNAL: mine\nand more"),
            "it for v5e:2x2: INTERNAL: mine$",
        ),
        (("CompileError", "the TPU compiler cannot describe it"), "^the TPU compiler cannot descr"),
        (
            ("OSError", "No space left"),
            "^step was not compiled for v5e:2x2: OSError: No spa",
        ),
    ],
)
def test_errors_of_the_child_are_those_of_a_compilation_here(
    compile_with: Run, tmp_path: Path, error: tuple[str, str], sentence: str
) -> None:
    said = json.dumps(dict(zip(("kind", "text"), error, strict=True)))
    with pytest.raises(CompileError) as raised:
        compile_with(f"open(folder + '/error.json', 'w').write({said!r})\nos._exit(1)")
    assert re.search(sentence, str(raised.value))
    assert "\n" not in str(raised.value)
    notes = [] if error[0] == "CompileError" else [error[1]]
    assert getattr(raised.value, "__notes__", []) == notes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "^step was not compiled for v5e:2x2: the process of the TPU compiler ended with "
            "SIGKILL, a crash of libtpu or a lack of memory; compile parts of the program to find",
        ),
        (
            "sys.exit('F1 x.cc:3] Check failed: a == b\\n@ 0x7f12  main\\n*** end of stack')",
            r"ended with code 1 \(F1 .*a == b\), a crash",
        ),
        ("sys.exit('I was\\nlast\\x1b[31m words\\n@ 0x7f12')", r"code 1 \(last\ufffd\[31m words\)"),
        (REPORTS, "does not dump its schedule; write until='code'"),
        (WHOLE.replace(REPORTS, ""), "does not dump its schedule; write until='code'"),
    ],
)
def test_a_child_that_breaks_is_one_sentence(
    compile_with: Run, tmp_path: Path, script: str, sentence: str
) -> None:
    with pytest.raises(CompileError, match=sentence):
        compile_with(script)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"until": "hlo"}, "until is 'hlo'"),
        ({"time_limit": float("nan")}, "time_limit is nan; write seconds, above 0"),
        ({"time_limit": -1.0}, "time_limit is -1.0; write seconds, above 0"),
        ({"until": "schedule", "time_limit": 0}, "time_limit is 0; write seconds, above 0"),
        ({"until": "schedule", "time_limit": "5"}, "time_limit is '5'; write seconds"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr("tpusim.compiler.compiling.versions", dict)
    with pytest.raises((CompileError, ts.TpusimError), match=sentence):
        ts.xla.compile(lambda x: x, 1.0, slice="v5e:1x1", **given)
