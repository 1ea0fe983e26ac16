"""Compiled programs on disk: the same one is found, a broken one is not."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import WHOLE

from tpusim.compiler import cache


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))


def test_what_is_kept_is_found() -> None:
    assert cache.get("a") is None
    cache.put("a", WHOLE)
    assert cache.get("a") == replace(WHOLE, from_cache=True)
    assert cache.get("b") is None


def test_the_key_is_of_the_content() -> None:
    facts = {"slice": "v5e:2x2", "flags": ["", ""]}
    key = cache.key(b"program", facts)
    assert key == cache.key(b"program", dict(reversed(facts.items())))
    assert key != cache.key(b"programs", facts)
    assert key != cache.key(b"program", {**facts, "slice": "v6e:2x2"})


@pytest.mark.parametrize("length", [0, 1, 40, -1, -9])
def test_half_an_entry_is_none(length: int, tmp_path: Path) -> None:
    cache.put("a", WHOLE)
    entry = tmp_path / "cache" / "a.hlo.gz"
    entry.write_bytes(entry.read_bytes()[:length])
    assert cache.get("a") is None
    cache.put("a", WHOLE)
    assert cache.get("a") is not None


def test_an_entry_that_was_changed_is_none(tmp_path: Path) -> None:
    """Also where it is whole and readable, as after a change by hand, or of another program."""
    cache.put("a", WHOLE)
    other = replace(WHOLE, model_flops=1.0)
    cache.put("b", other)
    kept = tmp_path / "cache"
    other.save(kept / "a.hlo.gz")
    assert cache.get("a") is None
    assert cache.get("b") == replace(other, from_cache=True)
    (kept / "b.sha256").write_bytes(b"\xff")
    assert cache.get("b") is None


def test_nothing_but_whole_entries_is_left_for_their_owner(tmp_path: Path) -> None:
    for _ in range(3):
        cache.put("a", WHOLE)
    kept = tmp_path / "cache"
    assert sorted(file.name for file in kept.iterdir()) == ["a.hlo.gz", "a.sha256"]
    if os.name == "posix":
        assert stat.S_IMODE(kept.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="set TPUSIM_CACHE to a folder that can be written"):
        cache.put("a", WHOLE)
    assert cache.get("a") is None


def test_the_folder_is_the_system_s_own_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUSIM_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.folder() == Path("/caches/tpusim")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache/tpusim"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.folder() == Path.home() / "Library/Caches/tpusim"
