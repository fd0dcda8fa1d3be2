"""What limits of a process do not count, the memory cgroup of a worker does, where one can be made."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs

from envweave_gym.sandbox import Limits, Names, Sandbox, Session, Setup, memory_groups
from envweave_gym.sandbox.memory_groups import V1, V2, MemoryGroups

TAKEN = "import mmap\nm = mmap.mmap(-1, {} << 20)\nfor i in range(0, len(m), 4096): m[i] = 1\nlen(m) >> 20"
"""Memory that is mapped to be shared, which ``RLIMIT_DATA`` does not count."""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    needs("landlock")
    if memory_groups.parent_group() is None:
        pytest.skip("this user may make no memory cgroup here")
    made = Sandbox(Setup(limits=Limits(memory=100 << 20)), ready=0)
    yield made
    made.close()


def opened(sandbox: Sandbox) -> Session:
    session = sandbox.open()
    session.name(Names())
    return session


def groups() -> list[str]:
    """The memory cgroups of this process's sandboxes."""
    found = memory_groups.parent_group()
    assert found is not None
    return [name for name in os.listdir(found[0]) if name.startswith(f"envweave-sandbox-{os.getpid()}-")]


def test_memory_that_is_shared_counts(sandbox: Sandbox) -> None:
    session = opened(sandbox)
    assert "memory cgroup" in session.process.layers
    assert session.run(TAKEN.format(60)).value == 60
    done = session.run(TAKEN.format(300))
    assert (done.error_type, done.state_lost) == ("WorkerDied", True)
    assert "memory limit" in done.error
    session.close()


def test_private_memory_still_ends_in_an_error(sandbox: Sandbox) -> None:
    session = opened(sandbox)
    assert session.run("x = bytearray(200 << 20)").error_type == "MemoryError"
    assert session.run("x = 'small'\nx").value == "small"
    session.close()


def test_a_branch_has_a_group_of_its_own(sandbox: Sandbox) -> None:
    session = opened(sandbox)
    assert session.run(TAKEN.format(60)).value == 60
    branch = session.fork()
    assert len(groups()) == 2
    assert branch.run(TAKEN.format(110)).value == 110
    assert branch.run("del m\n" + TAKEN.format(300)).error_type == "WorkerDied"
    assert session.run("len(m) >> 20").value == 60
    branch.close()
    session.close()
    assert groups() == []


def test_groups_go_with_the_sandbox_and_those_of_a_killed_host_with_the_next(sandbox: Sandbox) -> None:
    opened(sandbox)
    assert len(groups()) == 1
    sandbox.close()
    assert groups() == []
    found = memory_groups.parent_group()
    assert found is not None
    left = Path(found[0], f"envweave-sandbox-{2**22 + 1}-0-0")
    left.mkdir()
    MemoryGroups(1 << 30)
    assert not left.exists()


def test_a_group_that_cannot_be_made_now_may_be_made_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_groups, "parent_group", lambda: (str(tmp_path), V2))
    groups = MemoryGroups(1 << 30)
    made: list[str] = []

    def full(folder: str, *_: Any) -> Any:
        made.append(folder)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(memory_groups, "MemoryGroup", full)
    assert (groups.new(), groups.new(), len(made)) == (None, None, 2)
    (tmp_path / Path(made[0]).name).mkdir()
    groups.remove_all()
    assert list(tmp_path.iterdir()) == []


def test_the_groups_above_are_found(tmp_path: Path) -> None:
    own = tmp_path / "cgroup" / "user" / "job"
    own.mkdir(parents=True)
    mount = f"30 23 0:26 / {tmp_path}/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(f"23 1 0:20 / /proc rw - proc proc rw\n{mount}\n")
    (proc / "cgroup").write_text("0::/user/job\n")
    for folder in (own, own.parent):
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.subtree_control").write_text("")
    assert memory_groups.parent_group(str(proc)) is None
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert memory_groups.parent_group(str(proc)) == (str(own.parent), V2)
    (own / "cgroup.subtree_control").write_text("memory\n")
    assert memory_groups.parent_group(str(proc)) == (str(own), V2)
    (proc / "cgroup").write_text("4:memory:/box/in\n0::/user/job\n")
    (proc / "mountinfo").write_text(
        f"31 23 0:27 /box {tmp_path}/cgroup/user rw - cgroup cgroup rw,memory\n{mount}\n"
    )
    (own.parent / "in").mkdir()
    (own.parent / "in" / "cgroup.procs").write_text("")
    assert memory_groups.parent_group(str(proc)) == (str(own.parent / "in"), V1)


def test_where_no_group_can_be_made_there_are_the_other_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("landlock")
    monkeypatch.setattr(memory_groups, "parent_group", lambda: None)
    made = Sandbox(Setup(), ready=0)
    session = opened(made)
    assert "memory cgroup" not in session.process.layers
    assert session.run("x = bytearray(1 << 30)").error_type == "MemoryError"
    branch = session.fork()
    assert branch.run("1").value == 1
    for one in (branch, session, made):
        one.close()
