"""The command that checks a plan: what it prints and writes, what it keeps, and its mistakes."""

import json
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from commands import SMALL, said
from compiler_parts import TESTED

import tpusim as ts
from tpusim.base import CompileError
from tpusim.compiler import Compiled, RefusedError
from tpusim.compiler_check import compile_step
from tpusim.compiler_check.compile_step import StepCompilation

pytest.importorskip("jaxlib.xla_client")

HLO = Path(__file__).parents[2] / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz"
RUN = SMALL.replace("4x4", "2x2") + "mesh = {fsdp = 4}\n"
Asked = list[StepCompilation]


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run file, where jax, libtpu and optax need not be installed and the cache is empty."""
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_step, "versions", lambda: dict(TESTED))
    monkeypatch.setattr(compile_step, "version", lambda name: "1.0")
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    return str(file)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the compiler is asked for; its answer is a program that was compiled before."""
    made: Asked = []

    def stub(given: StepCompilation) -> Compiled:
        made.append(given)
        pod = given.planned.pod
        devices = tuple((0, n % 2, n // 2, 0, 0) for n in range(pod.devices))
        until = "code" if given.full else "schedule"
        return replace(
            ts.xla.load(HLO), slice=pod, devices=devices, mesh=tuple(given.mesh.items()),
            seconds=3.0, until=until,
        )  # fmt: skip

    monkeypatch.setattr(compile_step, "_compile", stub)
    return made


def test_it_prints_plan_and_program_side_by_side(
    run_file: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(["check", run_file], capsys)
    assert (code, error) == (0, "")
    for head in ("check  ", "where the step goes, in ms", "FLOPs  ", "HBM peak", "collectives",
                 "differences", "note"):  # fmt: skip
        assert any(line.startswith(head) for line in out.splitlines()), head
    assert "compiled by" in out
    assert "in 3.0 s" in out
    assert "--full generates code too" in out
    assert max(map(len, out.splitlines())) <= 100
    assert (asked[0].until, asked[0].time_limit) == ("schedule", 600)
    assert asked[0].step.source == ts.export_jax(*_arguments(run_file))


def test_a_second_call_reads_the_program_and_does_not_compile(
    run_file: str, asked: Asked, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    first = said(["check", run_file], capsys)[1]
    monkeypatch.setitem(sys.modules, "jax", None)  # an import of it would raise
    second = said(["check", run_file], capsys)[1]
    assert len(asked) == 1
    assert ", now read from the cache" in second
    assert second.replace(", now read from the cache", "") == first
    said(["check", run_file, "--set", "plan.seq_len=256"], capsys)
    assert len(asked) == 2


def test_a_program_with_code_serves_for_both(
    run_file: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--full"], [], ["--full"]):
        out = said(["check", run_file, *more], capsys)[1]
        assert ("--full generates" in out) == (len(asked) == 1)
    assert [each.full for each in asked] == [False, True]


def test_another_optax_is_another_program(
    run_file: str, asked: Asked, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    said(["check", run_file], capsys)
    monkeypatch.setattr(compile_step, "version", lambda name: "2.0")
    said(["check", run_file], capsys)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("batch", "code", "said_first"),
    [
        (32, 4, "the compiler refuses it, but the plan fits"),
        (2**20, 0, "the compiler refuses it, and the plan does not fit"),
    ],
)
def test_a_refusal_is_a_result_and_fails_where_the_plan_fits(
    run_file: str, asked: Asked, batch: int, code: int, said_first: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make = compile_step._compile

    def refuse(given: StepCompilation) -> Compiled:
        program = replace(make(given), refusal="it needs 33 GiB")
        raise RefusedError("small does not fit", program)

    monkeypatch.setattr(compile_step, "_compile", refuse)
    settings = ["--set", f"plan.global_batch={batch}"]
    for _ in range(2):
        found, out, _ = said(["check", run_file, *settings], capsys)
        assert (found, len(asked)) == (code, 1)
        assert " ".join(out.split()).startswith(f"check {said_first}: ")
        assert "the compiler refused it: it needs 33 GiB" in " ".join(out.split())
    facts = json.loads(said(["check", run_file, *settings, "--json"], capsys)[1])
    assert (facts["refused"], facts["same_verdict"]) == (True, code == 0)


@pytest.mark.usefixtures("asked", "undrawn")
def test_all_files_are_written(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    out = said(["check", run_file, "--out", str(folder)], capsys)[1]
    assert out.endswith(f"report      {folder}\n")
    names = {file.name for file in folder.iterdir()}
    assert names == {"check.txt", "check.json", "differences.csv", "check.png", "report.html"}
    facts = json.loads((folder / "check.json").read_text("utf-8"))
    assert facts["plan_step_s"] == ts.simulate(*_arguments(run_file)).step_time_s
    assert facts["program_step_s"] > 0
    assert out.startswith((folder / "check.txt").read_text("utf-8").rstrip("\n"))


MISTAKES = (
    (["--time-limit", "0"], "--time-limit: time_limit is 0.0; write seconds, above 0"),
    (["--time-limit", "-3"], "time_limit is -3.0; write seconds"),
    (["--time-limit", "nan"], "time_limit is nan; write seconds"),
    (["--time-limit", "soon"], "Invalid value for '--time-limit'"),
    (["--out", ""], "--out is empty"),
    (["--out", __file__], "is a file; give a folder"),
    (["--out", f"{__file__}/report"], "cannot be written: Not a directory"),
    (["--set", "plan.mesh={stage=2,fsdp=2}", "--set", "plan.microbatches=4"],
     "plan.pipeline.schedule is '1f1b', which tpusim cannot write as JAX yet; write 'circular'"),
    (["--set", "plan.gather_dtype=f32"], "plan.dtypes.gather is 'f32', which tpusim cannot"),
    (["--set", "model.experts=8", "--set", "model.experts_per_token=2",
      "--set", "plan.mesh={fsdp=2,expert=2}", "--set", "plan.expert_exchange=ring"],
     "layer/dispatch is a sort of tokens that a ring gathers (write expert_exchange = 'gather')"),
    (["--set", "plan.mesh={fsdp=2,context=2}", "--set", "plan.context_exchange=ring"],
     "plan.context.exchange is 'ring', which tpusim cannot write as JAX yet; write 'gather'"),
    (["--set", "plan.mesh={fsdp=3}"], "write axes that multiply to 4"),
)  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_is_compiled(
    arguments: list[str], sentence: str, run_file: str, asked: Asked,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    before = set(tmp_path.iterdir())
    code, out, error = said(["check", run_file, *arguments], capsys)
    assert (code, out) == (2, "")
    assert sentence in error
    assert (asked, set(tmp_path.iterdir())) == ([], before)


def test_what_is_not_installed_is_named(
    run_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compile_step, "version", missing)
    code, _, error = said(["check", run_file], capsys)
    assert code == 2
    assert "from optax, which is not installed; pip install 'tpusim[xla]'" in error
    monkeypatch.undo()
    monkeypatch.setattr("tpusim.compiler.topologies.version", missing)
    code, _, error = said(["check", run_file], capsys)
    assert code == 2
    assert "jax is not installed; pip install 'tpusim[xla]'" in error


@pytest.mark.parametrize(
    ("raised", "code", "sentence"),
    [
        (CompileError("small does not fit v5e:2x2"), 2, "run.toml: small does not fit v5e:2x2"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_compiler_that_stops_leaves_nothing(
    raised: BaseException, code: int, sentence: str, run_file: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(given: StepCompilation) -> Compiled:
        raise raised

    monkeypatch.setattr(compile_step, "_compile", stop)
    found, out, error = said(["check", run_file, "--out", str(tmp_path / "report")], capsys)
    assert (found, out) == (code, "")
    assert sentence in error
    assert [file.name for file in tmp_path.iterdir()] == ["run.toml"]


def test_export_prints_or_writes_the_program(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ts.export_jax(*_arguments(run_file))
    assert said(["export", run_file], capsys) == (0, source, "")
    out = tmp_path / "step.py"
    code, text, _ = said(["export", run_file, "--out", str(out)], capsys)
    assert (code, out.read_text("utf-8")) == (0, source)
    assert text.startswith(f"{out}: {source.count(chr(10))} lines of JAX")


@pytest.mark.parametrize(
    ("out", "sentence"),
    [("", "is a folder"), (".", "is a folder"), ("/proc/none/step.py", "cannot be written")],
)
def test_export_says_where_it_cannot_write(
    out: str, sentence: str, run_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = said(["export", run_file, "--out", out], capsys)
    assert (code, text) == (2, "")
    assert sentence in error


def _arguments(path: str) -> tuple[ts.models.Transformer, ts.Plan, ts.Slice]:
    run = ts.read_run(path)
    return run.model, run.plan, run.pod
