"""The package itself: what its import costs, which names it has, and what its wheel holds."""

from __future__ import annotations

import ast
import configparser
import email
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import envweave_gym
from envweave_gym.core.faults import MissingExtra, need
from envweave_gym.core.moved_names import HOMES
from envweave_gym.registry.catalog import CARDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("envweave_gym", "envweave_gym_server")
MODULES = ("envweave_gym_pytest.py",)
EXTRAS = {"demo", "server", "train", "notebook", "docker", "kubernetes", "ray", "datasets", "swebench"}
EXTRAS |= {"tinker", "tinker-server", "cookbook", "trl", "suites", "language", "openspiel", "all", "dev"}
HEAVY = {"torch", "flask", "docker", "requests", "websocket", "matplotlib", "pytest", "jsonschema", "tqdm"}

COST = """
import gymnasium, pettingzoo, numpy, msgspec
import gc, os, time
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
gc.collect()
before, start = resident(), time.process_time()  # no others' work on a busy machine
import envweave_gym
print(1000 * (time.process_time() - start), resident() - before)
"""


def python(code: str, *, executable: str | Path = sys.executable) -> str:
    """What a fresh interpreter prints; a coverage tracer would be measured with it, so it has none."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTHONPATH"))}
    done = subprocess.run(
        [executable, "-P", "-W", "error", "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Its import


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm, which Linux has")
def test_the_import_costs_at_most_30_ms_and_3_mb_over_what_it_stands_on():
    rounds = [tuple(map(float, python(COST).split())) for _ in range(7)]
    assert min(milliseconds for milliseconds, _ in rounds) <= 30
    assert min(megabytes for _, megabytes in rounds) <= 3


def test_the_import_loads_the_table_and_nothing_else():
    code = """
import sys, gymnasium, pettingzoo, numpy, msgspec
before = set(sys.modules)
import envweave_gym
print(*sorted(set(sys.modules) - before))
"""
    loaded = python(code).split()
    ours = [name for name in loaded if name.startswith("envweave_gym")]
    rooms = ["envweave_gym", "envweave_gym.core", "envweave_gym.registry"]
    modules = [
        "envweave_gym.core.faults",
        "envweave_gym.core.module_aliases",
        "envweave_gym.core.version",
        "envweave_gym.registry.catalog",
    ]
    assert sorted(ours) == sorted([*rooms, *modules])
    others = {name.partition(".")[0] for name in loaded} - {"envweave_gym"}
    assert others <= sys.stdlib_module_names
    assert others.isdisjoint({"multiprocessing", "asyncio", "http", "sqlite3", "unittest"})


@pytest.mark.parametrize("name", ["clients", "envtorch", "repl"])
def test_a_module_is_imported_under_its_former_name_and_exists_once(name: str):
    former, module = f"envweave_gym.{name}", f"envweave_gym.compat.{name}"
    code = f"import sys, {former}, {module}; print(sys.modules['{former}'] is sys.modules['{module}'])"
    assert python(code).split() == ["True"]


def test_no_public_name_needs_an_extra():
    code = f"""
import sys, envweave_gym
names = [name for name in envweave_gym.__all__ if name != "testing"]
for name in names:
    getattr(envweave_gym, name)
print(*[name for name in {HEAVY} if name in sys.modules])
"""
    assert python(code).split() == []


@pytest.mark.parametrize(
    ("name", "module"),
    [("make", "registry.make"), ("Unicode", "core.spaces"), ("testing", "testing")],
)
def test_a_name_is_loaded_when_it_is_first_used(name: str, module: str):
    code = f"""
import sys, envweave_gym
print("envweave_gym.{module}" in sys.modules)
envweave_gym.{name}
print("envweave_gym.{module}" in sys.modules, "{name}" in vars(envweave_gym))
"""
    assert python(code).split() == ["False", "True", "True"]


def test_making_our_environments_needs_no_extra():
    code = f"""
import sys, gymnasium, envweave_gym
for card in envweave_gym.cards().values():
    if card.is_self_contained and not card.is_game:
        gymnasium.make(card.id, **card.trial).reset(seed=0)
print(*[name for name in {HEAVY} if name in sys.modules])
"""
    assert python(code).split() == []


# Its extras


def test_a_missing_extra_is_one_line_with_the_pip_command():
    with pytest.raises(MissingExtra) as caught:
        need("no_such_module.inside", "docker", "backend='docker'")
    assert str(caught.value) == (
        "backend='docker' needs no_such_module.inside, which is not installed: "
        "pip install 'envweave-gym[docker]'"
    )
    assert isinstance(caught.value, ImportError)
    assert need("json", "docker", "nothing").loads("1") == 1


def test_a_broken_dependency_is_not_taken_for_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "half_installed.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'no_such_module'") as caught:
        need("half_installed", "docker", "backend='docker'")
    assert not isinstance(caught.value, MissingExtra)


def test_our_cards_name_extras_that_exist():
    extras = set(metadata("envweave-gym").get_all("Provides-Extra", ()))
    assert extras >= EXTRAS
    assert {card.extra for card in CARDS if card.extra} <= extras


# Its names


@pytest.mark.parametrize("name", envweave_gym.__all__)
def test_every_public_name_is_there(name: str):
    value = getattr(envweave_gym, name)
    assert getattr(envweave_gym, name) is value
    assert name in dir(envweave_gym)


def test_the_root_has_about_thirty_names_and_type_checkers_see_the_same():
    stub = ast.parse(Path(envweave_gym.__file__).with_suffix(".pyi").read_text())
    assert all(isinstance(node, ast.ImportFrom) and len(node.names) == 1 for node in stub.body)
    for_checkers = [alias.asname for node in stub.body for alias in node.names]
    assert sorted(for_checkers) == sorted(envweave_gym.__all__)
    assert len(envweave_gym.__all__) <= 36


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'envweave_gym' has no attribute 'maek'"):
        _ = envweave_gym.maek  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "home"), [(name, home) for home, names in HOMES.items() for name in names.split()]
)
def test_a_name_that_has_moved_is_an_error_that_says_where_it_is(name: str, home: str):
    said = f"; it is in envweave_gym.{home}: from envweave_gym.{home} import {name}"
    with pytest.raises(AttributeError) as missing:
        getattr(envweave_gym, name)
    assert str(missing.value) == f"module 'envweave_gym' has no attribute '{name}'{said}"
    assert not hasattr(envweave_gym, name)
    for statement in (f"from envweave_gym import {name}", f"import envweave_gym.{name}"):
        with pytest.raises(ImportError, match=re.escape(f"cannot import '{name}' from 'envweave_gym'{said}")):
            exec(statement)
    exec(f"from envweave_gym.{home} import {name}")


def test_every_name_that_the_changelog_calls_moved_says_where_it_is():
    text = (ROOT / "CHANGELOG.md").read_text()
    rows = re.findall(r"^  \| (`\w+`.*?) \| `envweave_gym\.([\w.]+)` \|$", text, re.MULTILINE)
    moved = {name: home for names, home in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(moved) > 40
    del moved["register_all"]  # the root still has it, as it calls it
    assert {name: home for name, home in moved.items() if name not in HOMES[home].split()} == {}


def test_a_module_that_is_nowhere_is_missing_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'envweave_gym\.nowhere'$"):
        importlib.import_module("envweave_gym.nowhere")
    with pytest.raises(ImportError, match=r"^cannot import name 'nowhere' from 'envweave_gym' "):
        exec("from envweave_gym import nowhere")


def test_the_version_is_that_of_the_distribution():
    assert envweave_gym.__version__ == version("envweave-gym")


# Its wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", *MODULES):
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = (source / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_the_mark_of_types(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    expected = {
        *modules,
        *MODULES,
        *(f"{package}/py.typed" for package in PACKAGES),
        "envweave_gym/__init__.pyi",
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_declares_its_extras_and_entry_points(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    [folder] = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    declared = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert set(declared.get_all("Provides-Extra", ())) >= EXTRAS
    assert declared["Version"] == envweave_gym.__version__
    assert declared["Requires-Python"] == ">=3.11"
    assert declared["License-Expression"] == "BSD-3-Clause"
    base = [line for line in declared.get_all("Requires-Dist", ()) if "extra ==" not in line]
    assert sorted(line.partition("<")[0].partition(">")[0] for line in base) == [
        "gymnasium",
        "msgspec",
        "numpy",
        "pettingzoo",
        "requests",
    ]
    groups = configparser.ConfigParser()
    groups.read_string(archive.read(f"{folder}/entry_points.txt").decode())
    assert dict(groups["envweave_gym.envs"]) == {"envweave": "envweave_gym.registry.catalog:CARDS"}
    assert dict(groups["gymnasium.envs"]) == {"envweave": "envweave_gym.registry.catalog:register_all"}
    assert dict(groups["console_scripts"]) == {"envweave": "envweave_gym.cli:main"}
    assert dict(groups["pytest11"]) == {"envweave": "envweave_gym_pytest"}


def test_the_installed_wheel_works(wheel: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True, timeout=60)
    interpreter = tmp_path / "bin" / "python"
    install = ["uv", "pip", "install", "--quiet", "--python", interpreter, "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=60)
    [site] = tmp_path.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = """
import envweave_gym, gymnasium
print(envweave_gym.__file__)
print(gymnasium.make("envweave/Echo-v0").reset(seed=0)[0])
"""
    file, greeting = python(code, executable=interpreter).splitlines()
    assert Path(file).is_relative_to(site)
    assert greeting == "Echo environment ready!"
    listed = subprocess.run(
        [tmp_path / "bin" / "envweave", "list", "--ids"], capture_output=True, text=True, timeout=60
    )
    assert listed.stdout.splitlines() == sorted(envweave_gym.cards())


def test_the_pytest_plug_in_imports_nothing_of_the_package_until_it_is_asked():
    code = "import sys, envweave_gym_pytest; print('envweave_gym' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
