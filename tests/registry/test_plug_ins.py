"""IDs that come from other packages: real ones, built as wheels and installed beside this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[1] / "support" / "plug_ins"
CHECKOUT = str(Path(__file__).parents[2])
"""The folder of the code under test; another one may be installed in this environment."""


def build(source: Path, folder: Path) -> Path:
    """The wheel of a package, built from a copy of its sources."""
    copy = shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", copy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (copy / "dist").glob("*.whl")
    return wheel


def venv(folder: Path, *wheels: Path) -> Path:
    """The interpreter of a virtual environment that sees this one's packages, and has these wheels."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    interpreter = folder / "bin" / "python"
    install = ["uv", "pip", "install", "--quiet", "--python", interpreter, "--no-deps", "--no-index", *wheels]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=60)
    [site] = folder.glob("lib/python*/site-packages")
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (site / "beside.pth").write_text(line + "\n")
    return interpreter


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {name: build(SOURCES / name, folder) for name in ("good", "broken")}


@pytest.fixture(scope="module")
def good(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return venv(tmp_path_factory.mktemp("venv"), wheels["good"])


@pytest.fixture(scope="module")
def mixed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return venv(tmp_path_factory.mktemp("mixed"), *wheels.values())


def run(interpreter: Path, code: str, *flags: str) -> Any:
    """What the code prints as JSON in a fresh process."""
    done = subprocess.run(
        [interpreter, "-P", *flags, "-c", f"import json\n{code}"],
        env={**os.environ, "PYTHONPATH": CHECKOUT},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


STRICT = ("-W", "error")


def test_a_gymnasium_id_of_a_plug_in_works_by_every_make(good: Path):
    code = """
import gymnasium, envweave_gym
def played(env):
    observation, info = env.reset(seed=1)
    env.step(env.action_space.n - 1)
    [request] = envweave_gym.stream_of(info).requests
    return [type(env).__name__, int(env.action_space.n), env.spec.id, request.kind]
vector = gymnasium.make_vec("tidy/Guess-v0", num_envs=3)
print(json.dumps([
    played(gymnasium.make("tidy/Guess-v0")),
    played(envweave_gym.make("tidy/Guess-v0")),
    played(envweave_gym.make("tidy/Guess", highest=2)),
    [type(vector).__name__, vector.num_envs, int(vector.single_action_space.n)],
    envweave_gym.make("tidy/Guess-v0").state(),
]))
"""
    by_gym, by_us, by_kwargs, vector, state = run(good, code, *STRICT)
    assert by_gym == by_us == ["LaunchedStream", 5, "tidy/Guess-v0", "act"]
    assert by_kwargs == ["LaunchedStream", 3, "tidy/Guess-v0", "act"]
    assert vector == ["SyncVector", 3, 5]
    assert state == {"episode": -1, "step_count": 0}


def test_a_step_limit_of_a_plug_in_is_kept(good: Path):
    code = """
import gymnasium, envweave_gym
env = gymnasium.make("tidy/Guess-v0", highest=1000)
env.reset(seed=1)
print(json.dumps([env.step(0)[3] for _ in range(3)]))
"""
    assert run(good, code, *STRICT) == [False, False, True]


def test_a_pettingzoo_id_of_a_plug_in_works_by_every_make(good: Path):
    code = """
import pettingzoo, envweave_gym
def parallel(env):
    env.reset(seed=1)
    rewards = env.step({"left": 1, "right": 0})[1]
    return [type(env).__name__, rewards, env.agents]
def aec(env):
    env.reset(seed=1)
    for agent in env.agent_iter():
        done = any(env.last()[2:4])
        env.step(None if done else 1)
    return [type(env).__name__, env.record.turn]
print(json.dumps([
    parallel(pettingzoo.make("parallel", "knotty/Duel-v0")),
    parallel(envweave_gym.make("knotty/Duel-v0")),
    aec(pettingzoo.make("aec", "knotty/Duel-v0")),
    aec(envweave_gym.make("knotty/Duel-v0", api="aec", rounds=3)),
]))
"""
    by_zoo, by_us, aec_by_zoo, aec_by_us = run(good, code, *STRICT)
    assert by_zoo == by_us == ["ParallelStream", {"left": 1.0, "right": 0.0}, ["left", "right"]]
    assert aec_by_zoo == ["AECStream", 2]
    assert aec_by_us == ["AECStream", 3]


def test_cards_may_be_dicts_or_envcards_in_a_list_or_from_a_function(good: Path):
    code = "import envweave_gym\nprint(json.dumps({i: c.doc for i, c in envweave_gym.cards().items()}))"
    found = run(good, code, *STRICT)
    theirs = {env_id: doc for env_id, doc in found.items() if not env_id.startswith("envweave/")}
    assert theirs == {
        "knotty/Duel-v0": "Draw.",
        "knotty/Say-v0": "Say it.",
        "tidy/Arm-v0": "Needs an arm.",
        "tidy/Guess-v0": "Guess a number.",
        "tidy/Leg-v0": "Needs a leg.",
        "tidy/Typo-v0": "Points nowhere.",
    }


def test_cards_are_read_without_their_environments(good: Path):
    code = """
import sys, envweave_gym
print(json.dumps(["tidy.cards" in sys.modules, "tidy.guess" in sys.modules]))
"""
    assert run(good, code, *STRICT) == [True, False]


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import knotty",
        "import knotty.say",
        "from knotty import WORDS",
        "import knotty.cards",
        "import tidy.guess",
        "import envweave_gym",
        "import envweave_gym.registry.make, knotty",
    ],
)
def test_a_plug_in_may_be_imported_in_any_order(good: Path, first: str):
    code = f"""
import gymnasium
{first}
env = gymnasium.make("knotty:knotty/Say-v0")
text = env.reset(seed=0)[0]
import knotty, envweave_gym
vector = gymnasium.make_vec("knotty:knotty/Say-v0", num_envs=2)
print(json.dumps([text, type(knotty.WORDS).__name__, type(vector).__name__, sorted(envweave_gym.cards())]))
"""
    text, space, vector, ids = run(good, code, *STRICT)
    assert (text, space, vector) == ("go", "Unicode", "SyncVector")
    assert {"knotty/Say-v0", "knotty/Duel-v0", "tidy/Guess-v0", "envweave/Echo-v0"} <= set(ids)


def test_a_missing_extra_names_the_pip_command_of_the_plug_in(good: Path):
    code = """
import gymnasium, envweave_gym
def error(make, name):
    try:
        make(name)
    except Exception as error:
        return [type(error).__name__, str(error)]
print(json.dumps([
    error(gymnasium.make, "tidy/Arm-v0"), error(envweave_gym.make, "tidy/Leg-v0"),
    error(gymnasium.make_vec, "tidy/Arm-v0"), error(gymnasium.make, "tidy/Typo-v0"),
]))
"""
    arm, leg, vector, typo = run(good, code, *STRICT)
    command = "pip install 'good-plug[arm]'"
    assert arm == ["MissingExtra", f"tidy/Arm-v0 needs arm_driver, which is not installed: {command}"]
    assert leg == [
        "MissingExtra",
        "tidy/Leg-v0 needs leg_driver, which is not installed: pip install good-plug",
    ]
    assert vector == arm
    assert typo == [
        "NotAvailable",
        "tidy/Typo-v0: tidy.gess:GuessEnv cannot be loaded: No module named 'tidy.gess'",
    ]


WARNINGS = """
import warnings, gymnasium, pettingzoo
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {first}
    import envweave_gym
def works(name):
    env = envweave_gym.make(name)
    env.reset(seed=0)
    env.close()
    return True
told = dict(str(w.message).removeprefix("plug-in ").split(": ", 1) for w in caught)
print(json.dumps([told, len(caught), sorted(envweave_gym.cards()), [works(name) for name in {works}]]))
"""


def test_a_broken_plug_in_is_one_warning_and_breaks_nothing_else(mixed: Path):
    works = ["envweave/Echo-v0", "envweave/KuhnPoker-v0", "tidy/Guess-v0", "rows/Good-v0", "flat/Guess-v0"]
    reported, count, ids, working = run(mixed, WARNINGS.format(first="", works=works))
    assert all(working)
    assert set(works) <= set(ids)
    assert [name for name in ids if name.startswith("rows/")] == ["rows/Good-v0"]
    assert count == len(reported)
    assert all("\n" not in text for text in reported.values())
    left_out = "its environments are left out:"
    rows = reported.pop("'rows' (rows:CARDS)")
    assert reported == {
        "'raises' (raises:CARDS)": f"{left_out} RuntimeError: no luck",
        "'leaves' (leaves:CARDS)": f"{left_out} SystemExit: not on this machine",
        "'nothing' (nothing:CARDS)": f"{left_out} TypeError: 'int' object is not callable",
        "'typo' (rows:CRADS)": f"{left_out} AttributeError: module 'rows' has no attribute 'CRADS'",
        "'a-ghost' (ghost:CARDS)": f"{left_out} ModuleNotFoundError: No module named 'ghost'",
        "'zz-thief' (thief:CARDS)": "tidy/Guess-v0 is left out: "
        "InvalidArgument: tidy/Guess-v0 is declared by good-plug already; choose another",
    }
    reasons = dict(part.split(" is left out: ") for part in re.split(r"; (?=[^;]+ is left out: )", rows))
    kinds = "a card has either gym=, or aec= or parallel= or both"
    steps = "vector=, max_steps= and game= go with gym=; a game has none"
    an_id, a_path = "a string like 'namespace/Name-v0'", "a string like 'module:attribute' or None"
    starts = {
        "rows/Unknown-v0": "card 'rows/Unknown-v0': 'colour' is no field; there are id, doc, ",
        "rows/NoForm-v0": f"rows/NoForm-v0: {kinds}",
        "rows/Both-v0": f"rows/Both-v0: {kinds}",
        "rows/Steps-v0": f"rows/Steps-v0: {steps}",
        "no version": f"card 'no version': id='no version' is refused; give {an_id}",
        "rows/Path-v0": f"card 'rows/Path-v0': gym='rows.Env' is refused; give {a_path}",
        "CartPole-v1": f"card 'CartPole-v1': id='CartPole-v1' is refused; give {an_id}",
        "not a row": "'not a row' is no card; give an EnvCard, or a dict with its fields",
    }
    wrong = {
        row: reasons[row]
        for row, start in starts.items()
        if not reasons[row].startswith(f"InvalidArgument: {start}")
    }
    assert wrong == {}
    taken = "envweave/Echo-v0 is declared by envweave-gym already; choose another"
    assert reasons["envweave/Echo-v0"] == f"InvalidArgument: {taken}"
    assert len(reasons) == 9


def test_cards_beside_environments_are_left_out_where_the_plug_in_comes_first(mixed: Path):
    reported, _, ids, _ = run(mixed, WARNINGS.format(first="import flat", works=["tidy/Guess-v0"]))
    assert "flat/Guess-v0" not in ids
    assert "partially initialized module 'flat'" in reported["'flat' (flat:CARDS)"]
    code = """
import warnings
warnings.simplefilter("ignore")
import flat, envweave_gym
envweave_gym.registry.catalog.register_all()
print(json.dumps(sorted(envweave_gym.cards())))
"""
    assert "flat/Guess-v0" in run(mixed, code)


def test_the_program_survives_broken_plug_ins(mixed: Path):
    done = subprocess.run(
        [mixed, "-P", "-m", "envweave_gym", "list", "--ids"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert {"envweave/Echo-v0", "tidy/Guess-v0", "rows/Good-v0"} <= set(done.stdout.splitlines())
    assert done.stderr.count("plug-in 'raises' (raises:CARDS)") == 1


def test_loaders_of_the_group_gymnasium_envs_register_our_ids():
    code = """
import sys, gymnasium
from importlib.metadata import entry_points
for entry_point in entry_points(group="gymnasium.envs", name="envweave"):
    entry_point.load()()
from pettingzoo import aec_registry
print(json.dumps(["envweave/Echo-v0" in gymnasium.registry, "envweave/KuhnPoker-v0" in aec_registry]))
"""
    assert run(Path(sys.executable), code, *STRICT) == [True, True]
