"""Installing from the stand-in of the hub: what is checked, what is written, and that nothing is left of a failure."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hub_wheels import wheel, wheel_name
from prime_hub import KEY, PrimeHub
from stub_program import PACKAGE, PAIR, tools_wheel
from toy_wheels import only_wheels_in

import envweave_gym
from envweave_gym.cli import main
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.hubs.prime import hub_packages
from envweave_gym.hubs.prime.file_conflicts import check_conflicts
from envweave_gym.hubs.prime.hub_lock import lock_of
from envweave_gym.hubs.prime.wheel_check import check_wheel

GUESS = ("acme", "guess", "1.0.0", PACKAGE)
V0 = {"requires": ["verifiers>=0.1.8"]}


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the files in a folder the only packages of the index."""
    for name, value in only_wheels_in(folder).items():
        monkeypatch.setenv(name, value)


def left(tmp_path: Path) -> list[str]:
    """Files that an install has left, but for locks and caches of uv."""
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    kept = [path for path in found if path.suffix != ".lock" and path.name not in ("uv.toml",)]
    return [str(path.relative_to(tmp_path)) for path in kept if path.relative_to(tmp_path).parts[0] != "uv"]


def test_an_installed_environment_is_made_without_a_request_and_played(hub: PrimeHub):
    hub.publish(*GUESS, **V0)
    package = hub_packages.install("acme/guess")
    assert (package.version, package.generation, list(package.pins)) == ("1.0.0", "v0", ["verifiers==0.3.1"])
    hub.requests.clear()
    env = envweave_gym.make("prime://acme/guess", env_args={"rows": 1})
    try:
        env.reset(seed=0)
        assert env.step("0")[1] == 1.0
    finally:
        env.close()
    assert hub.requests == []
    assert lock_of().path.stat().st_mode & 0o044 == 0o044


def test_make_without_the_package_explains_and_sends_no_request(hub: PrimeHub, tmp_path: Path):
    hub.publish(*GUESS, **V0)
    for call in (
        lambda: envweave_gym.make("prime://acme/guess"),
        lambda: envweave_gym.make("prime://acme/guess@2"),
    ):
        with pytest.raises(NotAvailable, match="envweave hub install acme/guess"):
            call()
    for name in (
        "prime://guess",
        "prime://",
        "prime://acme/",
        "prime://../x",
        "prime://acme/os",
        "prime://a b/c",
    ):
        with pytest.raises(InvalidArgument):
            envweave_gym.make(name)
    assert (hub.requests, left(tmp_path)) == ([], [])


def test_a_lock_file_installs_the_same_again_elsewhere(
    hub: PrimeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub.publish(*GUESS, **V0)
    first = hub_packages.install("acme/guess@1.0.0", project=True)
    hub.publish("acme", "guess", "1.1.0", PACKAGE, **V0)
    monkeypatch.setenv("ENVWEAVE_SUITES", str(tmp_path / "another"))
    monkeypatch.setenv("ENVWEAVE_INSTALL", "1")  # the wheel is on the hub, which make does not ask
    with pytest.raises(NotAvailable, match="not on this machine"):
        envweave_gym.make("prime://acme/guess")
    assert hub_packages.install("acme/guess@1.0.0") == first
    rows = json.loads(Path("envweave-hub.json").read_text())["packages"]
    assert [row["version"] for row in rows] == ["1.0.0"]


def test_the_lock_file_has_the_hashes_of_all_wheels_and_other_bytes_are_not_installed(
    hub: PrimeHub, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
):
    row = hub.publish(*GUESS, **V0)
    hub_packages.install("acme/guess", project=True)
    (locked,) = json.loads(Path("envweave-hub.json").read_text())["packages"]
    original = library / "verifiers-0.3.1-py3-none-any.whl"
    assert locked["sha256"] == row["sha256"]
    assert locked["pins"] == {"verifiers==0.3.1": [hashlib.sha256(original.read_bytes()).hexdigest()]}
    index = tmp_path / "index"
    index.mkdir()
    (index / original.name).write_bytes(wheel("verifiers", "0.3.1", "PLANTED = True"))
    use_index(index, monkeypatch)
    for name in ("UV_CACHE_DIR", "ENVWEAVE_SUITES"):
        monkeypatch.setenv(name, str(tmp_path / "another" / name))
    with pytest.raises(NotAvailable, match=r"(?i)hash"):
        hub_packages.install("acme/guess")
    assert [*(tmp_path / "another" / "ENVWEAVE_SUITES" / "environments").iterdir()] == []


def test_a_dependency_without_wheels_is_not_built(
    hub: PrimeHub, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
):
    index = tmp_path / "index"
    shutil.copytree(library, index)
    with tarfile.open(index / "sourced-1.0.tar.gz", "w:gz") as archive:
        for name, text in (
            ("PKG-INFO", "Metadata-Version: 2.1\nName: sourced\nVersion: 1.0\n"),
            ("setup.py", ""),
        ):
            member = tarfile.TarInfo(f"sourced-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    use_index(index, monkeypatch)
    hub.publish(*GUESS, requires=["verifiers>=0.1.8", "sourced"])
    with pytest.raises(NotAvailable, match="sourced"):
        hub_packages.install("acme/guess")


def test_a_package_that_requires_its_own_name_is_refused(
    hub: PrimeHub, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
):
    index = tmp_path / "index"
    shutil.copytree(library, index)
    (index / wheel_name("guess", "7.0")).write_bytes(wheel("guess", "7.0"))
    use_index(index, monkeypatch)
    hub.publish(*GUESS, requires=["verifiers>=0.1.8", "guess>=5"])
    with pytest.raises(NotAvailable, match=r"guess==7\.0, which has its own name"):
        hub_packages.install("acme/guess")


def test_a_package_that_was_installed_with_several_agents_is_made_as_a_game(
    hub: PrimeHub, monkeypatch: pytest.MonkeyPatch
):
    hub.publish("acme", "pair", "1.0.0", PAIR, requires=["verifiers>=0.4"])
    assert hub_packages.install("acme/pair").agents == ("left", "right")
    monkeypatch.setattr(hub_packages, "make_registered", lambda call: (call.name, call.api))
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, ("envweave/HubTeam-v0", "parallel")),
        ({"backend": "subprocess"}, ("envweave/HubTeam-v0", "parallel")),
        ({"api": "aec"}, ("envweave/HubTeam-v0", "aec")),
        ({"api": "gym"}, ("envweave/Hub-v0", "gym")),
        ({"num_envs": 2}, ("envweave/Hub-v0", None)),
        ({"env_args": {"id": "another"}}, ("envweave/Hub-v0", None)),
    ]
    for kwargs, made in cases:
        assert envweave_gym.make("prime://acme/pair", **kwargs) == made, kwargs


def test_a_package_that_cannot_say_its_agents_is_installed_all_the_same(hub: PrimeHub):
    hub.publish("acme", "pair", "1.0.0", f"{PAIR}\nraise RuntimeError", requires=["verifiers>=0.4"])
    assert hub_packages.install("acme/pair").agents == ()


def test_a_content_hash_names_a_version_and_the_newest_is_taken_without_one(hub: PrimeHub):
    row = hub.publish(*GUESS, **V0)
    hub.publish("acme", "guess", "1.1.0", PACKAGE, **V0)
    assert hub_packages.install(f"acme/guess@{row['content_hash'][:8]}").version == "1.0.0"
    assert hub_packages.install("acme/guess").version == "1.1.0"
    by_hash = hub_packages.hub_id_of(f"acme/guess@{row['content_hash'][:10]}")
    assert hub_packages.find_installed(by_hash)[0].version == "1.0.0"


def test_a_project_that_is_renamed_keeps_its_package_whatever_another_one_removes(
    hub: PrimeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub.publish(*GUESS, **V0)
    package = hub_packages.install("acme/guess", project=True)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    hub_packages.install("acme/guess", project=True)
    hub_packages.remove("acme/guess")
    monkeypatch.chdir((tmp_path / "here").rename(tmp_path / "renamed"))
    hub.requests.clear()
    assert hub_packages.find_installed(hub_packages.hub_id_of("acme/guess"))[0] == package
    assert hub.requests == []
    hub_packages.remove("acme/guess")
    with pytest.raises(NotAvailable, match="not installed"):
        hub_packages.remove("acme/guess")


def test_the_generation_is_the_hubs_hint_or_follows_from_the_package(hub: PrimeHub):
    taskset = "import verifiers.v1 as vf\n__all__ = ['T']\nclass T(vf.Taskset): pass\n"
    for name, source, requires, more, expected in (
        ("hinted", PACKAGE, "verifiers>=0.4", {"runtime_hint": "VERIFIERS_V0"}, "conflict"),
        ("loader", PACKAGE, "verifiers>=0.2", {}, "v0"),
        ("exports", taskset, "verifiers", {}, "v1"),
        ("both", f"{taskset}{PACKAGE}", "verifiers>=0.4,<0.5", {}, "v1"),
        ("old", f"{taskset}{PACKAGE}", "verifiers>=0.1.9", {}, "v0"),
    ):
        hub.publish("acme", name, "1.0.0", source, requires=[requires], **more)
        if expected == "conflict":
            with pytest.raises(NotAvailable, match="unsatisfiable"):
                hub_packages.install(f"acme/{name}")
        else:
            assert hub_packages.install(f"acme/{name}").generation == expected


def refused(hub: PrimeHub, tmp_path: Path, word: str, hub_id: str = "acme/guess") -> None:
    """An install is refused in one sentence with this word, and leaves nothing."""
    with pytest.raises(NotAvailable) as caught:
        hub_packages.install(hub_id)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_a_requirement_that_does_not_resolve_is_uvs_own_reason(hub: PrimeHub, tmp_path: Path):
    hub.publish(*GUESS, requires=["verifiers>=0.1.8", "no-such-package>=3"])
    refused(hub, tmp_path, "no-such-package")


@pytest.mark.parametrize("python", ["--help", "", "3.11\n"])
def test_what_is_no_interpreter_is_refused_before_anything_is_asked(hub: PrimeHub, python: str):
    with pytest.raises(InvalidArgument, match="not an interpreter"):
        hub_packages.install("acme/guess", python=python)
    assert hub.requests == []


def test_an_install_that_fails_leaves_no_wheel(
    hub: PrimeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub.publish(*GUESS, **V0)

    def fail(*_: Any) -> None:
        raise NotAvailable("acme/guess: uv cannot install it: the disk is full")

    monkeypatch.setattr("envweave_gym.suites.uv_commands.Uv.install_locked", fail)
    refused(hub, tmp_path, "the disk is full")


ENTRY_POINTS = "guess-1.0.0.dist-info/entry_points.txt"
WHEELS: dict[str, tuple[str, Any]] = {
    "a path that leads out": ("unsafe path", {"files": {"../evil.py": b""}}),
    "an absolute path": ("unsafe path", {"files": {"/evil.py": b""}}),
    "a drive": ("unsafe path", {"files": {"c:evil.py": b""}}),
    "a .pth file": (".pth", {"files": {"evil.pth": b"import os"}}),
    "a module of Python": ("hide", {"files": {"json.py": b""}}),
    "a module of the library": ("another package", {"files": {"verifiers/v1/tasksets/guess.py": b""}}),
    "a module of this project": ("another package", {"files": {"envweave_gym/registry/plan.txt": b""}}),
    "a module of a dependency": ("ours.py' of tools", {"files": {"ours.py": b""}, "requires": ["tools"]}),
    "a command of a dependency": (
        "the command 'tool'",
        {"files": {ENTRY_POINTS: b"[console_scripts]\ntool = guess:f\n"}, "requires": ["tools"]},
    ),
    "a command elsewhere": ("no name", {"files": {ENTRY_POINTS: b"[console_scripts]\n../x = guess:f\n"}}),
    "wrong entry points": ("entry points", {"files": {ENTRY_POINTS: b"tool = guess:f\n"}}),
    "a section with spaces": (
        "another section",
        {"files": {ENTRY_POINTS: b"[ console_scripts ]\ntool = guess:f\n"}, "requires": ["tools"]},
    ),
    "a section in upper case": (
        "another section",
        {"files": {ENTRY_POINTS: b"[Console_Scripts]\ntool = guess:f\n"}, "requires": ["tools"]},
    ),
    "a section in a value": (
        "another section",
        {"files": {ENTRY_POINTS: b"[other]\na = b\n  [console_scripts]\n  tool = guess:f\n"}},
    ),
    "compiled code of a dependency": (
        "compiled",
        {"files": {"tools/__pycache__/part.cpython-311.pyc": b""}, "requires": ["tools"]},
    ),
    "compiled code of a module of a dependency": (
        "compiled",
        {"files": {"__pycache__/ours.cpython-311.pyc": b""}, "requires": ["tools"]},
    ),
    "a compiled module": ("compiled", {"files": {"helpers/part.pyc": b""}}),
    "a data folder": ("outside", {"files": {"guess-1.0.0.data/scripts/run": b""}}),
    "a second dist-info": ("exactly one", {"files": {"other-1.dist-info/METADATA": b""}}),
    "no module": ("no module", {"module": "something"}),
    "another name": ("says that it is", {"metadata": "Metadata-Version: 2.1\nName: else\nVersion: 1.0.0\n"}),
    "another version": ("version", {"metadata": "Metadata-Version: 2.1\nName: guess\nVersion: 9\n"}),
    "no version": ("version", {"metadata": "Metadata-Version: 2.1\nName: guess\n"}),
    "a requirement by URL": ("only names", {"requires": ["x @ https://evil.example/x.whl"]}),
    "an option": ("only names", {"requires": ["--index-url https://evil.example"]}),
}


@pytest.mark.parametrize("case", WHEELS)
def test_a_hostile_wheel_is_refused_before_it_is_installed(hub: PrimeHub, tmp_path: Path, case: str):
    word, changes = WHEELS[case]
    requires = ["verifiers<0.3.2", *changes.pop("requires", [])]
    hub.publish("acme", "guess", data=wheel("guess", source=PACKAGE, requires=requires, **changes))
    refused(hub, tmp_path, word)


def test_helper_modules_and_files_beside_the_module_are_installed(hub: PrimeHub):
    source = f"import helpers.prompts, scoring\n{PACKAGE}"
    files = {"helpers/prompts.py": b"", "scoring.py": b"", "pyproject.toml": b"", "tests/test_it.py": b""}
    files[ENTRY_POINTS] = b"[console_scripts]\nguess-it = guess:f\n"
    requires = ["verifiers>=0.1.8", "tools"]
    hub.publish("acme", "guess", data=wheel("guess", source=source, files=files, requires=requires))
    hub_packages.install("acme/guess")
    env = envweave_gym.make("prime://acme/guess", env_args={"rows": 1})
    try:
        env.reset(seed=0)
        assert env.step("0")[1] == 1.0
    finally:
        env.close()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("guess.py", None),
        ("guess/data/rows.json", None),
        ("guess-1.0.0.dist-info/METADATA", None),
        ("pyproject.toml", None),
        ("README.md", None),
        ("ours.json", "ours.json"),
        ("ours.py", "ours.py"),
        ("ours/__init__.py", "ours.py"),
        ("ours/more.py", None),  # ours.py is imported all the same
        ("tools.py", "tools"),
        ("tools/__init__.py", "tools/__init__.py"),
        ("tools/part/__init__.py", "tools/part.py"),
        ("tools/part.cpython-311-x86_64-linux-gnu.so", "tools/part.py"),
        ("tools/another.py", None),
        ("fast.py", "fast.cpython-311-x86_64-linux-gnu.so"),
        ("fast/__init__.py", "fast.cpython-311-x86_64-linux-gnu.so"),
        ("shared.py", "shared"),
        ("shared/__init__.py", None),
        ("shared/one.py", "shared/one.py"),
        ("shared/two.py", None),
    ],
)
def test_files_that_would_overwrite_or_hide_those_of_a_dependency(
    tmp_path: Path, name: str, found: str | None
):
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    with zipfile.ZipFile(io.BytesIO(tools_wheel())) as file:
        file.extractall(site)
    if found is None:
        check_conflicts(site, [name], ["guess"], "the wheel")
        return
    with pytest.raises(NotAvailable) as caught:
        check_conflicts(site, [name], [], "the wheel")
    assert f"{name!r}, which would hide or overwrite {found!r} of tools;" in str(caught.value)


@pytest.mark.parametrize(
    ("named", "said", "is_same"),
    [
        ("1.0.0", "1.0.0", True),
        ("1.0", "1.0.0", True),
        ("1.0.0rc1", "1.0.0-rc.1", True),
        ("1.0.0+a.b", "1.0.0+a-b", True),
        ("2.0.0", "1.0.0", False),
        ("2.0.0rc1", "1.0.0rc1", False),
        ("py3", "1.0.0", False),
    ],
)
def test_the_version_in_the_files_name_is_that_of_the_package(named: str, said: str, is_same: bool):
    data, filename = wheel("guess", said, PACKAGE), wheel_name("guess", named)
    hub_id = hub_packages.hub_id_of("acme/guess")
    if is_same:
        assert check_wheel(data, filename, hub_id, None, None).version == said
        return
    with pytest.raises(NotAvailable, match="another version"):
        check_wheel(data, filename, hub_id, None, None)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not a zip", b"\0" * 100])
def test_bytes_that_are_no_wheel_are_refused(hub: PrimeHub, tmp_path: Path, data: bytes):
    hub.publish("acme", "guess", data=data)
    refused(hub, tmp_path, "cannot be read")


def test_a_wheel_with_damaged_content_is_refused(hub: PrimeHub, tmp_path: Path):
    data = bytearray(wheel("guess", source=PACKAGE * 40))
    at = data.index(b"guess.py") + 60
    data[at : at + 40] = bytes(40)
    hub.publish("acme", "guess", data=bytes(data))
    refused(hub, tmp_path, "cannot be read")


def test_a_version_with_white_space_is_that_version(hub: PrimeHub):
    text = "Metadata-Version: 2.1\nName: guess\nVersion: 1.0.0 \nRequires-Dist: verifiers<0.3.2\n"
    hub.publish("acme", "guess", data=wheel("guess", source=PACKAGE, metadata=text))
    assert prime_version(hub) == "1.0.0"


def prime_version(hub: PrimeHub) -> str:
    hub.publish("acme", "guess", "1.0.0", PACKAGE, **V0)
    return hub_packages.install("acme/guess").version


def test_other_bytes_than_the_hashes_are_refused(hub: PrimeHub, tmp_path: Path):
    row = hub.publish(*GUESS, **V0)
    row["sha256"] = "0" * 64
    refused(hub, tmp_path, "index")
    row["sha256"] = None
    hub.packages.clear()
    hub.publish(*GUESS, sha256="1" * 64, **V0)
    refused(hub, tmp_path, "details")


def test_a_version_that_was_published_again_is_refused(hub: PrimeHub):
    hub.publish(*GUESS, **V0)
    hub_packages.install("acme/guess")
    hub.packages.clear()
    hub.publish("acme", "guess", "1.0.0", PACKAGE + "\n# changed\n", **V0)
    with pytest.raises(NotAvailable, match="another wheel"):
        hub_packages.install("acme/guess")


def test_names_are_not_confused(hub: PrimeHub, tmp_path: Path):
    hub.publish("acme", "guess", data=wheel("other", source=PACKAGE), filename=wheel_name("other", "1.0.0"))
    refused(hub, tmp_path, "")
    hub.packages.clear()
    hub.publish(*GUESS, **V0)["more"]["owner"] = {"name": "evil"}
    refused(hub, tmp_path, "answers the request")
    hub.packages.clear()
    hub.publish("acme", "guess", semantic_version="2.0.0", **V0)
    refused(hub, tmp_path, "version", "acme/guess@1.0.0")
    hub.packages.clear()
    hub.publish("acme", "x-whl", filename="x.whl", **V0)
    refused(hub, tmp_path, "", "acme/x-whl")
    hub.packages.clear()
    hub.publish(*GUESS, url_dependencies=["git+https://evil.example/x"], **V0)
    refused(hub, tmp_path, "URLs")


DETAILS = "/api/v1/environmentshub/acme/guess/@latest"
INDEX = "/acme/simple/guess/"
GARBAGE: dict[str, tuple[str, Any]] = {
    "text": (DETAILS, (200, {}, b"hello")),
    "a list": (DETAILS, (200, {}, b"[1, 2]")),
    "nothing": (DETAILS, (200, {}, b"")),
    "deep": (DETAILS, (200, {}, b"[" * 100_000)),
    "wrong types": (DETAILS, (200, {}, b'{"data": {"name": 3, "owner": []}}')),
    "an error": (DETAILS, (500, {}, b"[" * 100_000)),
    "a broken redirect": (DETAILS, (302, {"Location": "http://[x"}, b"")),
    "a redirect to nowhere": (DETAILS, (302, {"Location": "/"}, b"")),
    "a redirect to others": (DETAILS, (302, {"Location": "https://evil.example/x"}, b"")),
    "a circle": (DETAILS, (302, {"Location": DETAILS}, b"")),
    "a broken link": (INDEX, (200, {}, b'<a href="http://[x">x</a>')),
    "a broken page": (INDEX, (200, {}, b"<![foo")),
    "a foreign link": (
        INDEX,
        (200, {}, b'<a href="https://evil.example/guess-1.0.0-py3-none-any.whl">x</a>'),
    ),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_a_hub_that_answers_garbage_is_one_clear_error(hub: PrimeHub, tmp_path: Path, case: str):
    hub.publish(*GUESS, wheel_url=None, **V0)
    path, answer = GARBAGE[case]
    hub.overrides[path] = answer
    refused(hub, tmp_path, "")


@pytest.mark.parametrize(
    "url", ["https://[", "ftp://x", "http://example.com", "https://u:p@x", "x", "https://"]
)
def test_a_wrong_address_of_the_hub_is_refused(hub: PrimeHub, monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setenv("PRIME_API_BASE_URL", url)
    with pytest.raises(InvalidArgument, match="PRIME_API_BASE_URL"):
        hub_packages.install("acme/guess")


def test_a_hub_that_is_down_is_one_clear_error(hub: PrimeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://127.0.0.1:1")
    with pytest.raises(NotAvailable, match="cannot be reached"):
        hub_packages.install("acme/guess")


def test_the_key_goes_to_the_api_alone_and_private_packages_need_it(
    hub: PrimeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    hub.publish(*GUESS, private=True, **V0)
    refused(hub, tmp_path, "PRIME_API_KEY")
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    refused(hub, tmp_path, "command prime")
    assert {key for _, key in hub.requests} == {None, f"Bearer {KEY}"}
    hub.overrides[DETAILS] = (401, {}, b'{"detail": "no"}')
    refused(hub, tmp_path, "refuses this PRIME_API_KEY")
    monkeypatch.delenv("PRIME_API_KEY")
    refused(hub, tmp_path, "needs a key")


def test_the_hubs_index_is_never_given_to_uv(hub: PrimeHub):
    hub.publish(*GUESS, **V0)
    hub.publish("acme", "verifiers", "0.3.1", "PLANTED = True")
    assert list(hub_packages.install("acme/guess").pins) == ["verifiers==0.3.1"]
    assert "/acme/simple/verifiers/" not in [path for path, _ in hub.requests]


def test_a_lock_file_of_another_kind_or_time_is_refused(hub: PrimeHub):
    for text, word in (
        ("[]", "not a lock file"),
        ("{", "not a lock file"),
        ('{"packages": []}', "not a lock file"),
        ('{"format": 9, "packages": 3}', r"format 9, .*; update it"),
        ('{"format": 1, "packages": [{"pins": []}]}', "format 1, .* install its environments again"),
    ):
        Path("envweave-hub.json").write_text(text)
        with pytest.raises(NotAvailable, match=word):
            envweave_gym.make("prime://acme/guess")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("sha256", "/precious"),
        ("sha256", ""),
        ("sha256", "../../precious"),
        ("filename", "../../pwned.whl"),
        ("owner", ".."),
        ("version", "1 --index-url x"),
        ("python", "--help"),
        ("python", "3.11\n--index-url x"),
        ("pins", {"evil @ file:///precious": []}),
        ("pins", {"verifiers==0.3.1 --index-url x": []}),
        ("pins", {"verifiers==0.3.1": ["x --index-url y"]}),
    ],
)
def test_a_hostile_lock_file_names_no_paths(hub: PrimeHub, tmp_path: Path, member: str, value: Any):
    hub.publish(*GUESS, **V0)
    hub_packages.install("acme/guess", project=True)
    lock = Path("envweave-hub.json")
    content = json.loads(lock.read_bytes())
    precious = tmp_path / "precious"
    precious.mkdir()
    content["packages"][0][member] = json.loads(json.dumps(value).replace("/precious", str(precious)))
    lock.write_text(json.dumps(content))
    with pytest.raises(NotAvailable, match="not a lock file"):
        hub_packages.remove("acme/guess")
    assert precious.exists()


# The command


def test_the_command_searches_shows_installs_lists_and_removes(
    hub: PrimeHub, capsys: pytest.CaptureFixture[str]
):
    hub.publish(*GUESS, metadata={"description": "\x1b[2J\x1b]0;owned\x07 a game"}, **V0)
    for words, shown in (
        (["search", "gue"], "acme/guess"),
        (["info", "acme/guess"], "a game"),
        (["install", "acme/guess"], "prime://acme/guess@1.0.0"),
        (["list"], "prime://acme/guess@1.0.0"),
        (["remove", "acme/guess"], "prime://acme/guess@1.0.0"),
        (["list"], "nothing"),
    ):
        assert main(["hub", *words]) == 0
        out = capsys.readouterr().out
        assert shown in out
        assert "\x1b" not in out
    assert main(["hub", "search", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "acme/guess"


def test_errors_of_the_command_are_one_line(hub: PrimeHub, capsys: pytest.CaptureFixture[str]):
    assert main(["hub", "install", "guess"]) == 2
    assert main(["hub", "install", "acme/none"]) == 1
    assert main(["hub", "remove", "acme/none"]) == 1
    assert not lock_of().path.parent.exists()
    assert len(capsys.readouterr().err.splitlines()) == 3
