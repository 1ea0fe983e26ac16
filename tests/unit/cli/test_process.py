"""The command as a process: what it loads, its time, pipes, and terminals that are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from extent import thorough

ROOT = Path(__file__).parents[3]
FLAGSHIP = ROOT / "experiments" / "bert_480b" / "run.toml"
HEAVY = {"pandas", "matplotlib", "jax", "rich"}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


PROFILED = {"Diagnosis", "Profile", "calibrate", "diagnose", "read_profile"}


def modules_of(statement: str) -> set[str]:
    """All modules that a fresh process has loaded after `statement`."""
    code = f"{statement}\nimport sys; print('loaded', *sys.modules)"
    first, *names = python("-c", code).stdout.splitlines()[-1].split()
    assert first == "loaded"
    return set(names)


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after `statement`."""
    return HEAVY & modules_of(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "import tpusim",
        f"import tpusim as ts; [getattr(ts, name) for name in set(ts.__all__) - {PROFILED}]",
        f"from tpusim.cli.main import run; run(['simulate', {str(FLAGSHIP)!r}, '--stats'])",
        "from tpusim.cli.main import run; run(['chips'])",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    assert loaded_by(statement) == set()


@pytest.mark.thorough
def test_names_of_profiles_load_pandas_alone() -> None:
    """A profile and what is found in it are tables, so who asks for them needs pandas."""
    assert loaded_by(f"import tpusim as ts; [getattr(ts, name) for name in {PROFILED}]") == {
        "pandas"
    }


@pytest.mark.parametrize(
    ("moment", "code"),
    [("tpusim.cli.main._print_answer", 130), ("gc.freeze", 0)],
    ids=["while its answer is printed", "afterwards"],
)
def test_an_interrupt_at_the_end_is_no_traceback(moment: str, code: int) -> None:
    module, name = moment.rsplit(".", 1)
    ended = python(
        "-c",
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have it ignored
        "from importlib import import_module\n"
        f"setattr(import_module({module!r}), {name!r}, lambda *_: signal.raise_signal(2))\n"
        "import_module('tpusim.cli.main').main()\n",
        "chips",
    )
    assert ended.returncode == code
    assert ended.stderr.partition(";")[0] == ("error: interrupted" if code else "")
    assert ("v5p" in ended.stdout) == (code == 0)


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_by("import rich") == {"rich"}


def command(*arguments: str) -> str:
    """The statement that runs a command."""
    return f"from tpusim.cli.main import run; run({list(arguments)!r})"


PACKAGES = {"numpy", "pydantic", "simpy", "typer", "jinja2", "pyarrow", "yaml"} | HEAVY
ROOMS = {
    *("bounds", "compiler.hlo", "compiler.to_program", "graph", "hardware", "lowering", "maxtext"),
    *("models", "report.figures", "searches", "simulation", "sweeps", "training", "validation"),
    *("compiler_check", "export"),
}
HELP = {"typer"}
OF_PLANS = {"typer", "pydantic", "numpy"}
PLANNED = {"graph", "hardware", "lowering", "models", "simulation"}


@pytest.mark.parametrize(
    ("statement", "packages", "rooms"),
    [
        (command("--help"), HELP, set()),
        thorough(command("--version"), HELP | {"pydantic"}, set()),
        (command("simulat"), HELP | {"pydantic"}, set()),
        thorough(command("chips", "--help"), HELP | {"pydantic"}, set()),
        (command("simulate", "--help"), OF_PLANS, {"graph"}),
        (command("simulate", str(FLAGSHIP)), OF_PLANS | {"simpy"}, PLANNED),
        thorough(command("simulate", str(FLAGSHIP), "--json"), OF_PLANS | {"simpy"}, PLANNED),
        ("import tpusim as ts; ts.simulate", {"pydantic", "numpy", "simpy"}, PLANNED),
    ],
)  # fmt: skip
def test_only_what_a_command_uses_is_loaded(
    statement: str, packages: set[str], rooms: set[str]
) -> None:
    """Of third-party packages, and of our own rooms; each costs tens of milliseconds."""
    loaded = modules_of(statement)
    assert PACKAGES & loaded <= packages
    assert {room for room in ROOMS if f"tpusim.{room}" in loaded} <= rooms


ALL_IS_READ = """
import atexit, gc, sys

def show():
    print("read", gc.get_stats()[2]["collections"] - before, len(gc.get_objects()))

sys.argv = ["tpusim", *sys.argv[1:]]
from tpusim.cli import main
before = gc.get_stats()[2]["collections"]
atexit.register(show)
main()
"""
"""Prints how often all that lives was read for cycles, and how much the end would read again."""


@pytest.mark.thorough
def test_what_lives_is_not_read_for_cycles() -> None:
    """Neither during a command nor at its end, where some 100,000 objects live."""
    *_, last = python("-c", ALL_IS_READ, "simulate", str(FLAGSHIP)).stdout.splitlines()
    word, times, objects = last.split()
    assert (word, times) == ("read", "0")
    assert int(objects) < 1000


@pytest.mark.thorough
def test_no_colours_and_no_terminal() -> None:
    plain = python("-m", "tpusim", "simulate", str(FLAGSHIP), TERM="xterm-256color")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "\x1b" not in plain.stdout
    assert "\x1b" not in python("-m", "tpusim", "--help", FORCE_COLOR="1").stdout


def test_a_mistake_has_no_traceback() -> None:
    wrong = python("-m", "tpusim", "simulate", "experiments")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: experiments: a folder;")


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m tpusim chips v4 | true; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(
        ["bash", "-c", f"sleep 0; {command}"], capture_output=True, text=True, check=True
    )
    assert (piped.stdout, piped.stderr) == ("0\n", "")


def test_an_encoding_that_lacks_a_letter_does_not_stop_the_answer() -> None:
    ascii_only = python("-m", "tpusim", "simulate", str(FLAGSHIP), PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0
    assert "fsdp=256 on y,z ? tensor=8 on x" in ascii_only.stdout


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "tpusim", "chips"], stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert answer.returncode == 2
    assert answer.stderr == "error: the answer cannot be printed: No space left on device\n"


FIGURES = ("breakdown", "timeline", "memory", "utilisation", "torus", "axes", "roofline")


@pytest.mark.thorough
def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    """To the byte, under two hash seeds."""
    folders = {"1": tmp_path / "one", "2": tmp_path / "two"}
    for seed, folder in folders.items():
        arguments = ("-m", "tpusim", "simulate", str(FLAGSHIP), "--out", str(folder))
        assert python(*arguments, PYTHONHASHSEED=seed).returncode == 0
    first, second = (
        {file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders.values()
    )
    assert set(first) == {
        "summary.txt", "result.json", "operations.csv", "transfers.csv", "lines.csv",
        "program.txt", "report.html", "trace.json.gz",
        *(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")),
    }  # fmt: skip
    assert first == second
