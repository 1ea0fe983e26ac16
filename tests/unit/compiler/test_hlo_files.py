"""The HLO files that other tests read: whole, small, and as their manifest says."""

import json
import re
from pathlib import Path

import pytest

from tpusim.compiler import load

FOLDER = Path(__file__).parents[2] / "data" / "hlo"
FILES = json.loads((FOLDER / "manifest.json").read_text("utf-8"))["files"]


def test_the_manifest_names_all_files_and_no_others() -> None:
    assert sorted(FILES) == sorted(file.name for file in FOLDER.glob("*.hlo.gz"))


def test_every_program_is_there_for_two_generations_and_one_for_several_slices() -> None:
    chips: dict[str, set[str]] = {}
    for line in FILES.values():
        chips.setdefault(line["program"], set()).add(line["slice"].partition(":")[0])
    assert {program: len(found) for program, found in chips.items() if len(found) < 2} == {}
    assert any(" x " in line["slice"] for line in FILES.values())
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 700_000


@pytest.mark.parametrize("file", FILES)
def test_a_file_says_what_the_manifest_says(file: str) -> None:
    line, found = FILES[file], load(FOLDER / file)
    assert str(found.slice).removesuffix(" slices") == line["slice"]
    assert dict(found.mesh or ()) == line["mesh"]
    assert found.model_flops == pytest.approx(line["model_flops"])
    assert found.memory is not None
    assert (found.memory.total, found.memory.exact) == (line["total_bytes"], True)
    assert len(found.devices or ()) == found.slice.devices if found.slice else False
    assert dict(found.versions) == line["versions"]
    said = set(re.findall(r" ([a-z\-]+)\(", found.hlo.replace("-start(", "(")))
    assert set(line["expected"]) <= said
    assert "is_scheduled=true" in found.hlo[:99]
