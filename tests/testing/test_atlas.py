"""The atlas finds what each ID of a misbehaving suite does, with a script that shows it, and goes on after a kill."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import misbehaving_suite
import msgspec
import psutil
import pytest

import envweave_gym.testing
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.testing.atlas import kit_probe
from envweave_gym.testing.atlas.atlas_file import Atlas, SuiteRecord, opened
from envweave_gym.testing.atlas.atlas_page import BEGIN, END, filled_page, page, rules_table, write_scripts
from envweave_gym.testing.atlas.id_probe import OUT_OF_TIME, Finding, IdProbe, IdRecord
from envweave_gym.testing.atlas.kit_probe import try_kit
from envweave_gym.testing.atlas.prober import Ended, Prober, ProberLost
from envweave_gym.testing.atlas.script_composition import RULES, promise_of, script_of
from envweave_gym.testing.atlas.survey import Effort, InstalledSuite, survey, without_ids
from envweave_gym.testing.atlas.verdicts import TOO_LARGE, verdict_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HANGING = ("Hangs", "HangsUnseeded")
WHOLE = (
    *("Good", "DrawsForNothing", "NeedsPackage", "NeedsArgument", "IgnoresSeed", "Remembers", "Rewrites"),
    *("VectorReward", "RaisesLater", "Segfaults", "LeaksThreads", "LeaksProcesses"),
)
"""IDs that are tried with all rules."""
GAME = dict.fromkeys(("parallel", "aec"), "envweave/CodeReview-v0")


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return misbehaving_suite.installed(tmp_path_factory.mktemp("suite") / "venv")


@pytest.fixture(scope="module")
def toys(interpreter: str) -> InstalledSuite:
    return InstalledSuite(name="misbehaving", distributions=("misbehaving",), python=interpreter)


def some(suite: InstalledSuite, *ids: str, limit: int | None = None, **kwargs: Any) -> InstalledSuite:
    """Return the suite with these of its IDs."""
    return msgspec.structs.replace(suite, ids=ids, limit=limit, **kwargs)


def by(*rules: str, jobs: int = 1, deadline_s: float = 30) -> Effort:
    """Return the effort of these rules, or of all without the kit."""
    return Effort(rules=rules or RULES, jobs=jobs, deadline_s=deadline_s)


def quiet(_: str) -> None:
    """Print nothing."""


@pytest.fixture(scope="module")
def atlas(toys: InstalledSuite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Atlas]:
    """Some IDs with all rules."""
    with opened(tmp_path_factory.mktemp("atlas") / "atlas.jsonl") as atlas:
        survey(atlas, some(toys, *(f"Toy/{name}-v0" for name in WHOLE)), by(jobs=2), quiet)
        yield atlas


def record(atlas: Atlas, name: str) -> IdRecord:
    return atlas.ids["misbehaving", "gym", f"Toy/{name}-v0"]


@pytest.fixture(scope="module")
def prober(toys: InstalledSuite) -> Iterator[Prober]:
    prober = Prober(toys.python, ["gymnasium.utils.env_checker", "misbehaving_suite"])
    yield prober
    prober.close()


@pytest.mark.parametrize("name", misbehaving_suite.BROKEN)
def test_a_broken_rule_is_found_and_reproduced(atlas: Atlas, prober: Prober, name: str):
    rule, kind = misbehaving_suite.BROKEN[name]
    if name in WHOLE:
        findings = record(atlas, name).findings
    else:
        rules, deadline_s = dict.fromkeys(("contract", rule)), 0.5 if name in HANGING else 30
        probe = IdProbe(
            "misbehaving",
            "gym",
            f"Toy/{name}-v0",
            imports=["misbehaving_suite"],
            run=prober.run,
            deadline_s=deadline_s,
            rules=[*rules],
        )
        findings = probe.record().findings
    assert [(one.rule, one.kind, one.reproduced) for one in findings] == [(rule, kind, True)]


def test_an_environment_that_keeps_the_rules_has_no_finding(atlas: Atlas):
    good = record(atlas, "Good")
    assert set(good.outcomes) == set(RULES)
    assert set(good.outcomes.values()) == {"passed"}
    assert not good.findings


def test_seeds_that_reach_the_generator_may_have_no_effect(atlas: Atlas):
    found = record(atlas, "DrawsForNothing")
    assert not found.findings
    assert "reach its random generator" in found.outcomes["different_seeds"]


@pytest.mark.parametrize(("name", "why"), [("NeedsPackage", "no_such_package"), ("NeedsArgument", "level")])
def test_an_id_that_cannot_be_made_here_is_no_finding(atlas: Atlas, name: str, why: str):
    found = record(atlas, name)
    assert why in found.unavailable
    assert not found.findings


def test_a_script_is_short_and_runs_alone(atlas: Atlas, toys: InstalledSuite, tmp_path: Path):
    (finding,) = record(atlas, "RaisesLater").findings
    assert finding.moves == 5
    (finding,) = record(atlas, "Rewrites").findings
    assert len(finding.script.splitlines()) < 80
    assert write_scripts([record(atlas, "Rewrites")], tmp_path) == 1
    (script,) = tmp_path.glob("*/*.py")
    done = subprocess.run([toys.python, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "is rewritten in place" in done.stderr.splitlines()[-1]


def test_nothing_is_left_of_suites_that_leak(atlas: Atlas):
    assert len(atlas.ids) == len(WHOLE)
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", "613"] not in commands


def test_the_page_has_a_row_for_the_suite_and_the_findings_by_kind(atlas: Atlas):
    text = page(atlas)
    (row,) = [line for line in text.splitlines() if line.startswith("| misbehaving 1.0 |")]
    ids, probed = len(WHOLE), len(WHOLE) - 2
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2:6] == [str(ids), str(probed), "3", "1"]  # vectors have a column, and are no finding
    for part in (
        "## Leaks",
        "## Ends the process",
        "`Toy/Segfaults-v0`",
        "SIGSEGV",
        "4 threads",
        "shape (2,)",
        "## Not tried",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120 or "|" in max(text.splitlines(), key=len)
    assert all(f"`{rule}`" in rules_table() for rule in RULES)


def test_a_run_goes_on_where_another_was_killed(toys: InstalledSuite, tmp_path: Path):
    path = tmp_path / "atlas.jsonl"
    code = (
        "import sys; from pathlib import Path; from envweave_gym.testing.atlas.survey import *\n"
        "from envweave_gym.testing.atlas.atlas_file import opened\n"
        f"with opened(Path({str(path)!r})) as atlas:\n"
        f"    suite = InstalledSuite(name='misbehaving', distributions=('misbehaving',), python={toys.python!r},\n"
        "        ids=('Toy/Go*', 'Toy/Hangs-v0'))\n"
        "    survey(atlas, suite, Effort(rules=['contract']), lambda line: print(line, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("misbehaving Toy/Good"):
                break
        children = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=60)
    assert not [child for child in children if child.is_running()]
    with path.open("ab") as file:
        file.write(b'{"id": {"suite": "misbeh')  # as if killed while it wrote
    lines: list[str] = []
    with opened(path) as atlas:
        survey(atlas, some(toys, "Toy/Go*"), by("contract"), lines.append)
    assert "1 chosen, 0 to be tried" in lines[0]
    assert [key[2] for key in Atlas(path).ids] == ["Toy/Good-v0"]


def test_an_id_is_tried_again_with_rules_that_are_not_in_the_atlas(toys: InstalledSuite, tmp_path: Path):
    lines: list[str] = []

    def surveyed(*rules: str) -> str:
        lines.clear()
        names = ["Toy/Good-v0", "Toy/Raises-v0", "Toy/NeedsPackage-v0"]
        survey(atlas, some(toys, *names), by(*rules), lines.append)
        return lines[0]

    with opened(tmp_path / "atlas.jsonl") as atlas:
        assert "3 to be tried" in surveyed("contract")
        assert "1 to be tried" in surveyed("contract", "closes_twice")  # the others cannot be played
        assert record(atlas, "Good").outcomes == {"contract": "passed", "closes_twice": "passed"}
        assert "0 to be tried" in surveyed("contract", "closes_twice")
        assert "0 to be tried" in surveyed("contract")
        assert atlas.suites["misbehaving"].versions["python"] == platform.python_version()


def test_the_kit_is_run_in_this_python(toys: InstalledSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    misbehaving_suite.write_module(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    suite = some(toys, "Toy/GlobalGenerator-v0")
    lines: list[str] = []
    with opened(tmp_path / "atlas.jsonl") as atlas:
        survey(atlas, suite, by("contract"), quiet)
        survey(atlas, suite, by("contract", "kit"), lines.append)
        assert "1 to be tried" in lines[0]
        survey(atlas, suite, by("contract", "kit"), lines.append)
        assert "0 to be tried" in lines[-1]
        found = record(atlas, "GlobalGenerator")
        assert "## Fails a check of the conformance kit" in page(atlas)
    assert found.outcomes == {"contract": "passed", "kit": "finding"}
    assert [(one.rule, one.reproduced) for one in found.findings] == [("kit.global_rngs_untouched", True)]
    assert "numpy.random" in found.findings[0].text
    assert "check_global_rngs_untouched(subject_of(" in found.findings[0].script


@pytest.mark.parametrize(
    ("error", "outcome", "rules"),
    [
        ("RuntimeError: the level is broken", "finding", ["kit.can_be_played"]),
        (
            "ModuleNotFoundError: No module named 'mujoco'",
            "ModuleNotFoundError: No module named 'mujoco'",
            [],
        ),
    ],
)
def test_only_what_is_missing_keeps_an_id_from_the_kit(error: str, outcome: str, rules: list[str]):
    raised = f'Traceback (most recent call last):\n  File "/some/where.py", line 3, in make\n{error}\n'

    def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
        return Ended(1, stderr=raised)

    found, findings = try_kit("Some/Id-v0", {}, run, 10)
    assert found == outcome
    assert [one.rule for one in findings] == rules
    assert all((one.kind, one.text, one.reproduced) == ("raises", error, True) for one in findings)


def failing_with(stderr: str) -> Any:
    """Return a function that runs no script, and says that each has failed with this error."""

    def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
        return Ended(
            1, stderr=f'Traceback (most recent call last):\n  File "/some/where.py", line 3\n{stderr}\n'
        )

    return run


def test_what_a_rule_has_found_is_no_finding_of_the_kit():
    failed = (
        "ConformanceError: X-v0: 2 of 9 checks fail\n"
        "- same_seed_same_trace: at move 3 reward is 1.0 in one and 2.0 in the other\n- close_twice: it raises"
    )
    outcome, findings = try_kit("X-v0", {}, failing_with(failed), 10, {"same_seed"})
    assert outcome == "finding, and finding of same_seed (same_seed_same_trace)"
    assert [(one.rule, one.text) for one in findings] == [("kit.close_twice", "it raises")]
    known = try_kit("X-v0", {}, failing_with(failed), 10, {"same_seed", "closes_twice"})
    assert known == ("finding of same_seed (same_seed_same_trace), closes_twice (close_twice)", ())


def test_a_rule_of_seeds_has_found_nothing_but_episodes_that_differ():
    failed = (
        "ConformanceError: X-v0: 2 of 9 checks fail\n- bad_seeds_are_refused: reset(seed=-1) does not raise\n"
        "- vector_equals_single: one ends after 3 moves, the other after 4"
    )
    outcome, findings = try_kit("X-v0", {}, failing_with(failed), 10, {"same_seed"})
    assert outcome == "finding, and finding of same_seed (vector_equals_single)"
    assert [one.rule for one in findings] == ["kit.bad_seeds_are_refused"]


def test_every_check_that_a_rule_replaces_is_one_of_the_kit():
    for check, rules in kit_probe._RULES_OF_CHECKS.items():
        assert hasattr(envweave_gym.testing, f"check_{check}")
        assert set(rules) <= set(RULES)


def test_what_the_rules_have_found_stays_if_the_process_of_the_kit_dies(
    toys: InstalledSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lost(*_: Any) -> Any:
        raise ProberLost("the process has ended")

    monkeypatch.setattr("envweave_gym.testing.atlas.survey.try_kit", lost)
    with opened(tmp_path / "atlas.jsonl") as atlas:
        survey(atlas, some(toys, "Toy/ClosesOnce-v0"), by("contract", "closes_twice", "kit"), quiet)
        found = record(atlas, "ClosesOnce")
        assert "the process has ended" in page(atlas)
    assert found.outcomes == {
        "contract": "passed",
        "closes_twice": "finding",
        "kit": "the process has ended",
    }
    assert not found.unavailable


def test_an_id_that_ends_the_process_of_its_scripts_is_a_finding(toys: InstalledSuite, tmp_path: Path):
    with opened(tmp_path / "atlas.jsonl") as atlas:
        survey(atlas, some(toys, "Toy/KillsProber-v0"), by("contract"), quiet)
        found = record(atlas, "KillsProber")
    assert [(one.rule, one.kind, one.moves, one.reproduced) for one in found.findings] == [
        ("contract", "crashes", 1, True)
    ]


def test_a_kit_that_takes_too_long_is_no_finding(tmp_path: Path):
    def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
        return Ended(None, "deadline")

    outcome, findings = try_kit("Toy-v0", {}, run, 10)
    assert not findings
    with opened(tmp_path / "atlas.jsonl") as atlas:
        atlas.add(IdRecord("toys", "Toy-v0", "gym", {"kit": outcome}))
        assert "the kit on 1 IDs such as `Toy-v0`: its checks do not end within 50 s" in page(atlas)


def test_the_same_warnings_of_two_checks_are_one_finding_of_the_kit():
    failed = (
        "ConformanceError: X-v0: 2 of 9 checks fail\n- gymnasium_api: check_env warns: no array\n"
        "- passive_api: the checker warns: no array\n- close_twice: it raises"
    )
    _, findings = try_kit("X-v0", {}, failing_with(failed), 10)
    assert [one.rule for one in findings] == ["kit.gymnasium_api", "kit.close_twice"]


def test_the_environments_of_a_suite_share_a_process_in_the_scripts_of_the_kit():
    scripts: list[str] = []

    def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
        scripts.append(script)
        return failing_with("ConformanceError: X: 1 fails\n- close_twice: it raises")(
            script, deadline_s, fresh=fresh
        )

    try_kit("X-v0", {"backend": "venv", "requirements": ["x==1"]}, run, 10)
    assert len(scripts) == 2
    for script in scripts:
        assert "with one_process():\n    check_" in script
        assert "backend='venv', requirements=['x==1']" in script


def test_an_id_that_needs_much_memory_is_stopped_and_tried_again_with_more(
    toys: InstalledSuite, tmp_path: Path
):
    lines: list[str] = []
    with opened(tmp_path / "atlas.jsonl") as atlas:
        for memory_mb, tried in ((200, 1), (200, 0), (250, 1), (200, 0)):
            lines.clear()
            effort = Effort(rules=["contract"], memory_mb=memory_mb)
            survey(atlas, some(toys, "Toy/NeedsMuchMemory-v0"), effort, lines.append)
            assert f"{tried} to be tried" in lines[0]
            assert record(atlas, "NeedsMuchMemory").unavailable == TOO_LARGE


def test_memory_that_environments_do_not_give_back_is_a_finding():
    ended = Ended(None, "memory")
    assert verdict_of("contract", ended, 10, "token").outcome == "skipped"
    for rule in ("leaves_nothing", "gives_memory_back"):
        assert verdict_of(rule, ended, 10, "token").kind == "broken"


def test_an_id_has_a_limit_of_time():
    outcomes = IdProbe("toys", "gym", "Toy-v0", imports=(), run=slow, deadline_s=10).record().outcomes
    assert outcomes["contract"] != OUT_OF_TIME
    assert [*outcomes.values()].count(OUT_OF_TIME) > 3


def slow(script: str, deadline_s: float, *, fresh: bool) -> Ended:
    """Say that a script was skipped after a long time."""
    token = script.rpartition("_os.write(_out, b'")[2].partition("'")[0]
    return Ended(77, seconds=11, stdout=token)


def test_a_page_is_filled_between_its_markers(atlas: Atlas, tmp_path: Path):
    file = tmp_path / "page.md"
    with pytest.raises(InvalidArgument, match="cannot be read"):
        filled_page(file, None)
    file.write_text("# Title\n")
    with pytest.raises(InvalidArgument, match="begin of the atlas"):
        filled_page(file, None)
    file.write_text(f"# Between `{BEGIN}` and `{END}`\n\n{BEGIN}\nold\n{END}\n\nmore\n")
    text = filled_page(file, atlas)
    assert text.startswith(
        f"# Between `{BEGIN}` and `{END}`\n\n{BEGIN}\n\n## {len(WHOLE) - 2} IDs of 1 suites\n"
    )
    assert text.endswith(f"{END}\n\nmore\n")
    assert "old" not in text


def test_the_page_can_be_made_of_the_lines_without_scripts(atlas: Atlas, tmp_path: Path):
    path = tmp_path / "brief.jsonl"
    path.write_bytes(atlas.brief())
    assert b"import gymnasium" not in path.read_bytes()
    assert page(Atlas(path)) == page(atlas)


def test_a_suite_that_is_left_out_keeps_what_is_known_of_it(tmp_path: Path):
    with opened(tmp_path / "atlas.jsonl") as atlas:
        atlas.add(SuiteRecord("toys", {"toys": "1.0"}, ids=3))
        finding = Finding("kit.close_twice", "broken", "it raises", 0, True)
        atlas.add(IdRecord("toys", "Toy-v0", "gym", {"kit": "finding"}, (finding,)))
        atlas.add(without_ids(atlas, "toys", "it does not resolve"))
        atlas.add(without_ids(atlas, "others", "it is not here"))
        text = page(atlas)
    assert "| toys 1.0 | 3 | 1 |" in text
    assert "- **toys**: it does not resolve" in text
    assert "- **others**: it is not here" in text
    assert "`kit.close_twice`: it raises (`Toy-v0`)" in text


def test_two_runs_do_not_write_to_one_file(tmp_path: Path):
    path = tmp_path / "atlas.jsonl"
    with opened(path), pytest.raises(NotAvailable, match="another process"), opened(path):
        pass


def test_a_file_that_is_no_atlas_is_refused(tmp_path: Path):
    (tmp_path / "atlas.jsonl").write_text('["something else"]\n')
    with pytest.raises(InvalidArgument, match="not of an atlas"), opened(tmp_path / "atlas.jsonl"):
        pass


def test_a_suite_without_ids_is_refused_with_the_reason(interpreter: str, tmp_path: Path):
    suite = InstalledSuite(
        name="empty", distributions=(), python=interpreter, modules=("no_such_module_of_a_suite",)
    )
    with (
        opened(tmp_path / "atlas.jsonl") as atlas,
        pytest.raises(NotAvailable, match="no_such_module_of_a_suite"),
    ):
        survey(atlas, suite, report=quiet)


def test_a_limit_chooses_ids_at_equal_distances(toys: InstalledSuite, tmp_path: Path):
    with opened(tmp_path / "atlas.jsonl") as atlas:
        survey(atlas, some(toys, "Toy/[CR]*", limit=2), by("contract"), quiet)
        assert len(atlas.ids) == 2
        assert atlas.suites["misbehaving"].surveyed == 2
        assert atlas.suites["misbehaving"].ids == sum(name[0] in "CR" for name in misbehaving_suite.MADE)


def test_every_rule_has_a_promise_and_a_script_for_every_api():
    for rule in RULES:
        assert promise_of(rule).endswith(".")
        for api in ("gym", "parallel", "aec"):
            script = script_of(rule, api, "some/Id-v0", imports=["some_suite"], moves=3)
            compile(script, rule, "exec")
            assert "import some_suite" in script
            assert ": Any" not in script


@pytest.mark.parametrize("api", ["parallel", "aec"])
@pytest.mark.parametrize("rule", ["contract", "same_seed", "fresh_observations", "different_seeds"])
def test_games_play_by_the_same_rules(rule: str, api: Any, capsys: pytest.CaptureFixture[str]):
    script = script_of(rule, api, GAME[api], imports=["envweave_gym"], kwargs={"max_rounds": 3}, moves=6)
    exec(compile(script, rule, "exec"), {"__name__": "__main__"})
