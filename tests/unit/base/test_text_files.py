"""Outputs: they stand where nothing or a regular file is, whole or not at all."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from outputs import OBSTACLES, kind_of

from tpusim.base.errors import FileError
from tpusim.base.text_files import atomic_write, write_file, write_files


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_is_no_regular_file_stays(kind: str, tmp_path: Path) -> None:
    OBSTACLES[kind](tmp_path / "it")
    before = kind_of(tmp_path / "it")
    with pytest.raises(FileError, match=f"it is {kind}, which no output replaces; give the name"):
        write_file(tmp_path / "it", b"new")
    with pytest.raises(FileError, match=f"it is {kind}, which no output replaces; give the name"):
        write_files(tmp_path, {"another": b"new", "it": b"new"})
    assert kind_of(tmp_path / "it") == before
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_socket_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most a hundred characters
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("it")
        with pytest.raises(FileError, match="it is a socket"):
            write_file(Path("it"), b"new")
        assert Path("it").is_socket()


@pytest.mark.parametrize("path", ["/dev/null", "/dev/full"])
def test_a_device_is_refused_before_anything_is_written(path: str) -> None:
    with (
        pytest.raises(FileError, match=f"{path} is a .*, which no output replaces"),
        atomic_write(Path(path)),
    ):
        pytest.fail("written")


def test_a_link_is_written_through_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to("folder/target")
    write_file(tmp_path / "link", b"new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.readlink(tmp_path / "link") == "second"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        *("folder", "link", "second", "target")
    ]


@pytest.mark.parametrize("write", [write_file, lambda path, data: write_files(path, {"a": data})])
@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_is_no_path_is_one_sentence(
    name: str, write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    with pytest.raises(FileError, match="is no path; leave out the characters that no path can"):
        write(tmp_path / name, b"")


def test_the_longest_names_can_be_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127):
        write_file(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"
    with pytest.raises(FileError, match="cannot be written: File name too long"):
        write_file(tmp_path / ("x" * 256), b"new")


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "it") as beside:
        beside.write_text("half" * (1 // 0))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("it", "old")]
