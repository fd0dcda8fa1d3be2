from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support import file_lock as module
from envweave_gym.os_support.file_lock import (
    create_lock_file,
    file_lock,
    shared_lock,
    try_lock,
    unlock,
    user_folder,
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, in which there is no other."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def test_a_lock_is_free_after_the_block_though_a_forked_child_has_the_file_open(scratch: Path) -> None:
    path = user_folder() / "test.lock"
    reading, writing = os.pipe()
    with file_lock(path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        with (
            pytest.raises(NotAvailable, match=r"another process .*test.lock for 0.05 s"),
            file_lock(path, 0.05),
        ):
            pass
    with file_lock(path, 0.05):
        (folder,) = scratch.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


def test_locks_are_in_no_folder_that_others_may_have_made(scratch: Path) -> None:
    (scratch / "elsewhere").mkdir()
    (scratch / f"envweave-{os.getuid()}").symlink_to(scratch / "elsewhere")
    with pytest.raises(NotAvailable, match="is not a folder of this user alone"):
        user_folder()
    assert not list((scratch / "elsewhere").iterdir())


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    lock = try_lock(path)
    assert lock is not None
    assert try_lock(path) is None
    unlock(lock)
    again = try_lock(path)
    assert again is not None
    unlock(again)


def test_users_share_a_lock_which_ends_with_the_last_of_them(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    assert shared_lock(path, 0.05) is None
    assert not path.exists()
    path.touch()
    first, second = shared_lock(path, 1), shared_lock(path, 1)
    assert first is not None
    assert second is not None
    os.close(first)
    assert try_lock(path) is None
    os.close(second)
    with file_lock(path, 0.05) as lock:
        assert os.path.samestat(os.fstat(lock), path.stat())
        with pytest.raises(NotAvailable, match="has held"):
            shared_lock(path, 0.05)


def test_the_lock_on_a_removed_file_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    with file_lock(path):
        path.unlink()
        with file_lock(path, 0.05):
            assert try_lock(path) is None


def test_a_lock_whose_file_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, is_at, calls = tmp_path / "one.lock", module._is_at, list[bool]()

    def removed_meanwhile(lock: int, at: Path) -> bool:
        if not calls:
            path.unlink()  # as another holder does when it ends
        calls.append(is_at(lock, at))
        return calls[-1]

    monkeypatch.setattr(module, "_is_at", removed_meanwhile)
    with file_lock(path):
        assert calls == [False, True]
        assert try_lock(path) is None


def test_a_wait_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_SILENCE_S", 0.02)
    path = tmp_path / "one.lock"
    with file_lock(path):
        for does in ("", "does a thing"):
            with pytest.raises(NotAvailable), file_lock(path, 0.3, holder_does=does):
                pass
    line = f"envweave: waiting for another process, which does a thing and holds {path}\n"
    assert capfd.readouterr().err == line


def test_a_lock_file_for_readers_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        create_lock_file(tmp_path / "one.lock", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "one.lock").stat().st_mode & 0o777 == 0o644
