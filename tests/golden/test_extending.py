"""The blocks of docs/extending.md run by themselves, and do what the page says."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from inputs import read_families
from reports import FIGURES

import tpusim as ts
from tpusim.models import from_hf
from tpusim.models.hf import recognise
from tpusim.network import ALGORITHMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text("utf-8")
SECTIONS = {
    section.split("\n")[0]: "".join(re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M))
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]
}
RUNNABLE = [section for section, code in SECTIONS.items() if code]


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what the walks read; what they register is gone afterwards."""
    shutil.copytree(ROOT / "hardware_specs", tmp_path / "hardware_specs")
    shutil.copytree(ROOT / "experiments/bert_480b", tmp_path / "experiments/bert_480b")
    monkeypatch.chdir(tmp_path)
    kept = {id(registry): dict(registry) for registry in (ALGORITHMS, FIGURES)}
    yield tmp_path
    for registry in (ALGORITHMS, FIGURES):
        for name in set(registry) - set(kept[id(registry)]):
            del registry[name]


def walked(section: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    """The names that the block of a section leaves, and what it printed."""
    names: dict[str, object] = {}
    exec(compile(SECTIONS[section], "extending.md", "exec"), names)
    return names, capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("section", RUNNABLE)
def test_a_block_runs_in_a_fresh_process(section: str) -> None:
    assert SECTIONS[section].count("import tpusim as ts") == 1, "one block in each section"
    ran = subprocess.run(
        [sys.executable, "-c", SECTIONS[section]], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


def test_every_walk_is_here() -> None:
    assert list(SECTIONS) == [
        "A new chip",
        "A new model family",
        "A new figure",
        "A new collective algorithm",
        "A new search axis",
    ]


def test_a_new_chip(capsys: pytest.CaptureFixture[str]) -> None:
    names, out = walked("A new chip", capsys)
    assert "transformer on v9:2x4x4 (32 chips)" in out
    old = ts.simulate(names["model"], names["plan"], ts.Slice("v5p", "2x4x4"))  # type: ignore[call-overload]
    new = ts.simulate(names["model"], names["plan"], names["pod"])  # type: ignore[call-overload]
    assert names["chip"].hbm_bandwidth == 2 * ts.load_chip("v5p").hbm_bandwidth  # type: ignore[attr-defined]
    assert new.step_time_s < old.step_time_s


def test_a_new_model_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [written] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.S | re.M)
    [family] = read_families(tomllib.loads(written))
    monkeypatch.setattr(recognise, "by_class", lambda: {"OursForCausalLM": family})
    monkeypatch.setattr(recognise, "by_type", lambda: {"ours": family})
    (tmp_path / "config.json").write_text(
        '{"model_type": "ours", "architectures": ["OursForCausalLM"], "hidden_size": 4096, '
        '"intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, '
        '"num_key_value_heads": 32, "vocab_size": 100352}',
        "utf-8",
    )
    assert from_hf(tmp_path / "config.json").parameter_count == pytest.approx(7.3e9, rel=0.01)


@pytest.mark.thorough
@pytest.mark.usefixtures("unadvised")
def test_a_new_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names, out = walked("A new figure", capsys)
    assert "optimizer" in out
    assert (tmp_path / "report/phases.png").stat().st_size
    data = names["phases_data"](names["result"])  # type: ignore[operator]
    assert sum(data.values()) == pytest.approx(names["result"].step_time_s)  # type: ignore[attr-defined]


def test_a_new_collective_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    """One direction only: all bytes but the own over one link, twice a ring's."""
    _, out = walked("A new collective algorithm", capsys)
    seconds = dict(line.rsplit(" ", 1) for line in out.splitlines())
    assert 1.5 < float(seconds["one way"]) / float(seconds["ring"]) < 2.1


def test_a_new_search_axis(capsys: pytest.CaptureFixture[str]) -> None:
    names, _ = walked("A new search axis", capsys)
    frame = names["frame"]
    assert set(frame["dcn_oversubscription"]) == {1.0, 8.0}  # type: ignore[index]
    assert set(frame["status"]) == {"ok"}  # type: ignore[index]
    times = frame.pivot(index="fsdp", columns="dcn_oversubscription", values="step_time_s")  # type: ignore[attr-defined]
    assert (times[8.0] >= times[1.0]).all()
