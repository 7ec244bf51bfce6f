"""Files appear whole or not at all."""

import hashlib
import os
from pathlib import Path

import pytest

from neatpack.storage.files import read_json, sha256_of, write_json, write_whole


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with write_whole(path) as file:
        file.write(b"ab")
        assert not path.exists()
    assert path.read_bytes() == b"ab"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), write_whole(path) as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_on_disk_before_it_has_its_name_and_then_the_name_is(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, bytes]] = []
    replace = os.replace

    def synced(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").resolve()
        done.append((f"sync {path.name}", path.read_bytes() if path.is_file() else b""))

    def replaced(part: Path, path: Path) -> None:
        done.append((f"{part.name} -> {path.name}", part.read_bytes()))
        replace(part, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with write_whole(tmp_path / "in" / "file", durable=durable) as file:
        file.write(b"ab")
    steps = [("sync .file.7.part", b"ab"), (".file.7.part -> file", b"ab"), ("sync in", b"")]
    assert done == (steps if durable else steps[1:2])


def test_another_process_has_another_part_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts at one task: neither writes into the other's file, and the last to end wins."""
    path = tmp_path / "file"
    with write_whole(path) as first:
        monkeypatch.setattr("os.getpid", lambda: 7)
        with write_whole(path) as second:
            first.write(b"first")
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"größe": [1, None]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n "größe": [\n  1,\n  null\n ]\n}\n'
    assert read_json(tmp_path / "a.json") == {"größe": [1, None]}


def test_digests_of_files_and_of_ranges(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    assert sha256_of(path) == hashlib.sha256(b"abcdef").hexdigest()
    assert sha256_of(path, 2, 4) == hashlib.sha256(b"cd").hexdigest()
    assert sha256_of(path, 4, 99) == hashlib.sha256(b"ef").hexdigest()
    assert sha256_of(path, 3, 3) == hashlib.sha256(b"").hexdigest()
