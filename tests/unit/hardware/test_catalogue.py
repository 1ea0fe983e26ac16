"""The chip files: every number has a source, and what is wrong in a file is named."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from tpusim.base import HardwareError
from tpusim.hardware import chip_names, load_chip, load_entries
from tpusim.hardware.catalogue import Kind, read_chip_file, specs_folder

FOLDER = Path(__file__).parents[3] / "hardware_specs"
V4 = (FOLDER / "v4.toml").read_text("utf-8")


@pytest.mark.parametrize("name", chip_names())
def test_every_number_has_a_kind_and_what_the_kind_asks_for(name: str) -> None:
    for field, entry in load_entries(name).items():
        assert entry.kind in get_args(Kind), field
        assert len(entry.source) > 5, field
        assert entry.data or entry.kind != "fitted", field
        if entry.kind == "assumed":
            assert len(entry.range) == 2, field
            assert len(entry.note) > 5, field


@pytest.mark.parametrize("name", chip_names())
def test_the_chip_is_its_entries(name: str) -> None:
    chip, entries = load_chip(name), load_entries(name)
    for field, entry in entries.items():
        section, _, key = field.rpartition(".")
        held = {"": chip, "costs": chip.costs, "compiler": chip.compiler, "flops": None}[section]
        value = chip.flops[key] if section == "flops" else getattr(held, key)
        assert value == entry.value, field


def test_an_unknown_chip_offers_the_nearest() -> None:
    with pytest.raises(HardwareError, match="no chip 'v5pp' in the catalogue; did you mean 'v5p'"):
        load_chip("v5pp")
    with pytest.raises(HardwareError, match=r"no chip 'V4.toml'.*valid are 7x, v2"):
        load_chip("V4.toml")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "[memory.hbm_bytes]",
            "[memory.hbm_byte]",
            "v4.toml [memory]: unknown key 'hbm_byte'; did",
        ),
        (
            "[costs.hop_latency]",
            "[costs.hop_latence]",
            "[costs]: unknown key 'hop_latence'; did you mean 'hop_latency'",
        ),
        ("[running.power]", "[runing.power]", "unknown key 'runing'; did you mean 'running'"),
        ('value = "32 GiB"\n', "", "v4.toml [memory.hbm_bytes]: 'value' is missing"),
        ('value = "32 GiB"', 'value = "32"', "[memory.hbm_bytes]: '32' has no unit"),
        ('value = "32 GiB"', "value = 32", "[memory.hbm_bytes]: 32 is not a number followed by"),
        ('value = "32 GiB"', 'valu = "32 GiB"', "unknown key 'valu'; did you mean 'value'"),
        ('value = "32 GiB"', "value = [1]", "[memory.hbm_bytes]: value is [1]; "),
        ('kind = "fitted"', 'kind = "fited"', "unknown kind 'fited'; did you mean 'fitted'"),
        (
            'data = "compiler estimates of 269 matmuls, libtpu 0.0.42.1"\n',
            "",
            "[costs.op_launch]: fitted, but to what?",
        ),
        ('range = ["1 us", "14 us"]\n', "", "[costs.collective_launch]: assumed, but how surely?"),
        ('"1 us", "14 us"', '"4 us", "14 us"', "must be two values, rising, with '3 us' inside"),
        ('"1 us", "14 us"', '"14 us"', "must be two values"),
        ("value = 2020", "value = 2020.5", "[chip.year] is 2020.5; write a whole number"),
        ("value = 0.86\n", "value = 1.5\n", "matmul_efficiency is 1.5, a share of one"),
        ('name = "v4"', 'name = "v5"', "v4.toml [chip]: name must be 'v4'"),
        ("[compute]", "[compute", "v4.toml is not valid TOML"),
    ],
)
def test_a_broken_file_is_named_with_the_key(old: str, new: str, sentence: str) -> None:
    broken = V4.replace(old, new, 1)
    assert broken != V4
    with pytest.raises(HardwareError, match=re.escape(sentence)):
        read_chip_file(broken, "v4.toml", "v4")


def test_a_key_that_is_missing_is_named() -> None:
    tables = V4.split("\n\n")
    without = "\n\n".join(part for part in tables if "[memory.hbm_bandwidth]" not in part)
    with pytest.raises(HardwareError, match=r"v4.toml \[memory\]: 'hbm_bandwidth' is missing"):
        read_chip_file(without, "v4.toml", "v4")


@pytest.mark.parametrize("text", ["", "chip = 3"])
def test_a_file_without_a_chip_is_refused(text: str) -> None:
    with pytest.raises(HardwareError, match=r"v4.toml \[chip\]: name must be 'v4'"):
        read_chip_file(text, "v4.toml", "v4")


def test_an_empty_source_is_refused() -> None:
    broken = re.sub(r'source = "[^"]*"', 'source = " "', V4, count=1)
    with pytest.raises(HardwareError, match="source is empty; write who says so"):
        read_chip_file(broken, "v4.toml", "v4")


def test_the_files_are_plain_toml_named_after_their_chip() -> None:
    for path in FOLDER.glob("*.toml"):
        assert tomllib.loads(path.read_text("utf-8"))["chip"]["name"] == path.stem


def test_an_installed_package_carries_its_files_and_a_checkout_has_them_beside(
    tmp_path: Path,
) -> None:
    checkout, package = tmp_path, tmp_path / "tpusim"
    package.mkdir()
    assert specs_folder(package, checkout) == checkout / "hardware_specs"
    (package / "hardware_specs").mkdir()
    assert specs_folder(package, checkout) == package / "hardware_specs"
