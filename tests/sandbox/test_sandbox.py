"""Programs in a sandbox: what they may do, what is told of them, what lasts from step to step."""

# ruff: noqa: E501 - one program a line

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandboxes import WORKER, needs

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.sandbox import Final, Limits, Names, Sandbox, Session, Setup, Variable


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    opened = sandbox.open()
    opened.name(Names(ends={"FINAL": "final", "FINAL_VAR": "final_var", "SHOW_VARS": "show"}))
    yield opened
    opened.close()


def test_the_last_expression_is_the_value(session: Session) -> None:
    done = session.run("x = 40\nx + 2")
    assert done.success
    assert (done.value, done.shown) == (42, "42")
    assert session.run("_").value == 42
    assert session.run("x;").shown == session.run("'é' ; # as text").shown == ""
    assert session.run("'a;'").shown == "'a;'"
    assert session.run("y = '\x0c'\n7  # no end;").shown == "7"
    assert session.run("(1, {'a': None})").value == [1, {"a": None}]
    assert session.run("{1, 2}").value == "{1, 2}"
    assert session.run("float('nan')").value == "nan"


def test_variables_last_and_are_reported(session: Session) -> None:
    session.run("import os\ndef f(): return [1, 2]\ny = f()\n_hidden = 1")
    done = session.run("f()", snapshot=10, watch=("y", "f", "nothing"))
    assert done.variables == {
        "f": Variable("function", done.variables["f"].shown),
        "y": Variable("list", "[1, 2]"),
    }
    assert done.watched == {"y": [1, 2]}


def test_stdout_and_stderr_are_separate(session: Session) -> None:
    done = session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert not done.success
    assert done.error_type == "ZeroDivisionError"
    assert done.error.splitlines()[1] == '  File "<step 1>", line 4, in <module>'
    assert "worker" not in done.error


def test_a_traceback_shows_the_lines_of_earlier_steps(session: Session) -> None:
    session.run("def f():\n    return {}['x']")
    assert "return {}['x']" in session.run("f()").error
    assert session.run("import inspect; inspect.getsource(f)").value == "def f():\n    return {}['x']\n"


def test_of_much_output_the_first_and_the_last_is_kept(session: Session) -> None:
    done = session.run("print('first'); print('x' * 10 ** 6); print('last')")
    assert done.stdout.startswith("first")
    assert done.stdout.endswith("last\n")
    assert "bytes more" in done.stdout
    assert len(done.stdout) < 8300
    assert session.usage.written == 10**6 + 12


def test_nothing_of_a_step_shows_in_the_next(session: Session) -> None:
    session.run("print('one'); 1 / 0")
    done = session.run("2")
    assert (done.stdout, done.error, done.value) == ("", "", 2)


@pytest.mark.parametrize("spoil", ["close()", "buffer.close()", "detach()", "buffer.detach()"])
def test_a_step_prints_again_after_one_that_closed_its_output(session: Session, spoil: str) -> None:
    assert session.run(f"import sys; sys.stdout.{spoil}; sys.stderr.{spoil}").success
    done = session.run("print('out'); print('err', file=sys.stderr)")
    assert (done.stdout, done.stderr, done.success) == ("out\n", "err\n", True)


def test_a_final_answer_ends_the_step_at_once(session: Session) -> None:
    done = session.run("try:\n    FINAL({'a': [1]})\nexcept Exception:\n    pass\nprint('never')")
    assert done.final == Final("{'a': [1]}", {"a": [1]})
    assert done.success
    assert done.stdout == ""
    assert session.run("1").final is None


def test_a_variable_may_be_the_final_answer(session: Session) -> None:
    session.run("long = 'x' * 10 ** 6")
    done = session.run("FINAL_VAR('long')")
    assert done.final is not None
    assert len(done.final.text) == 10**6
    assert "there is no variable 'short'; there are long" in session.run("FINAL_VAR('short')").error
    assert session.run("SHOW_VARS()").value == "long: str"


def test_the_names_of_the_host_mean_the_same_before_every_step(session: Session) -> None:
    session.name(Names(values={"context": "text", "n": 1}, constants=("context",), ends={"FINAL": "final"}))
    session.run("context = FINAL = n = None")
    assert session.run("context, n").value == ["text", None]
    assert session.run("FINAL(1)").final == Final("1", 1)


def test_the_program_of_the_host_is_found_and_may_not_fail(session: Session) -> None:
    session.name(Names(source="def double(x): return 2 * x", seed=3))
    assert session.run("double(4)").value == 8
    with pytest.raises(NotAvailable, match="no episode can begin: ZeroDivisionError"):
        session.name(Names(source="1 / 0"))
    with pytest.raises(NotAvailable, match="no_such_module"):
        session.name(Names(imports=("no_such_module",)))
    assert session.run("1 + 1").value == 2


def test_the_same_seed_draws_the_same(session: Session) -> None:
    session.name(Names(seed=7))
    first = session.run("import random; random.random()").value
    session.name(Names(seed=7))
    assert session.run("random.random()").value == first


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("import sqlite3; sqlite3.connect('a.db').execute('select 6 * 7').fetchone()", [42]),
        ("import asyncio\nasync def f(): await asyncio.sleep(0.001); return 1\nawait f()", 1),
        ("import asyncio\nasync def f(): return 1\nasyncio.run(f())", 1),
        ("from concurrent.futures import ThreadPoolExecutor as T\nwith T(32) as t: x = sum(t.map(int, '12' * 50))\nx", 150),
        ("import tarfile, io\nt = tarfile.open('t.tar', 'w'); open('f', 'w').write('x'); t.add('f'); t.close()\ntarfile.open('t.tar').extractall('out'); open('out/f').read()", "x"),
        ("import zipfile\nz = zipfile.ZipFile('z.zip', 'w'); z.writestr('f', 'x'); z.close()\nzipfile.ZipFile('z.zip').read('f').decode()", "x"),
        ("import shutil; open('g', 'w').write('x'); shutil.copy2('g', 'h'); open('h').read()", "x"),
        ("import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(1, 1)\nunittest.main(argv=['x'], exit=False).result.testsRun", 1),
        ("import dataclasses\n@dataclasses.dataclass\nclass P: x: int\ndataclasses.asdict(P(1))", {"x": 1}),
        ("import pickle\nclass P: pass\np = P(); p.x = 3\npickle.loads(pickle.dumps(p)).x", 3),
        ("import zoneinfo, datetime as d; d.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('UTC')).isoformat()", "2026-07-01T00:00:00+00:00"),
        ("import ssl; ssl.create_default_context().check_hostname", True),
        ("import tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(b'x')\nimport os; os.path.dirname(f.name) == os.getcwd()", True),
        ("open('my_module.py', 'w').write('x = 5')\nimport my_module; my_module.x", 5),
        ("import numpy as np; int((np.eye(50) @ np.arange(50)).sum())", 1225),
        ("__name__", "__main__"),
        ("math.floor(2.5)", 2),
        ("import os; (os.getcwd() == os.environ['HOME'], os.environ['TMPDIR'] == os.getcwd())", [True, True]),
    ],
    ids=lambda code: str(code)[:30],
)  # fmt: skip
def test_ordinary_programs_work(session: Session, code: str, value: object) -> None:
    done = session.run(code)
    assert done.value == value, done.error


def test_a_module_that_is_written_after_it_was_missed_is_found(session: Session) -> None:
    assert session.run("import late").error_type == "ModuleNotFoundError"
    session.run("open('late.py', 'w').write('x = 5')")
    assert session.run("import late; late.x").value == 5


def test_processes_of_its_own_are_refused_in_words(session: Session) -> None:
    done = session.run("import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()")
    assert done.error_type == "PermissionError"


def test_memory_has_a_limit_and_there_is_some_to_tell_so() -> None:
    small = Sandbox(Setup(limits=Limits(memory=64 << 20)), ready=0)
    session = small.open()
    try:
        session.name(Names())
        assert session.run("x = []\nwhile True: x.append(bytes(10 ** 6))").error_type == "MemoryError"
        done = session.run("del x\nimport numpy as np\nnp.ones(10 ** 8)")
        assert done.error_type == "MemoryError", done.error
        assert session.run("int(np.ones(10 ** 6).sum())").value == 10**6
    finally:
        session.close()
        small.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = '\0'", "ValueError"),
        ("x = '\ud800'", "UnicodeEncodeError"),
        ("def", "SyntaxError"),
        ("(" * 1000, "SyntaxError"),
        ("return 1", "SyntaxError"),
        ("x = 1\n" * (1 << 19), "MemoryError"),
        ("", ""),
        ("# nothing", ""),
    ],
    ids=lambda code: repr(code)[:12],
)  # fmt: skip
def test_an_error_is_reported_and_the_episode_goes_on(session: Session, code: str, error: str) -> None:
    done = session.run(code)
    assert done.error_type in (error, "SyntaxError" if error == "ValueError" else error), done.error
    assert not done.state_lost
    assert session.run("1 + 1").value == 2


@pytest.mark.parametrize(
    "code", [None, 3, b"1", ["1"], "x" * ((4 << 20) + 1)], ids=lambda code: repr(code)[:9]
)
def test_a_program_must_be_a_text_of_limited_length(session: Session, code: object) -> None:
    with pytest.raises(InvalidArgument, match="program"):
        session.run(code)  # type: ignore[arg-type]
    assert session.run("1 + 1").value == 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(session: Session, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout="):
        session.run("1", timeout=timeout)


def test_a_forged_report_is_cut_like_an_honest_one(session: Session) -> None:
    forged = (
        "shown='s' * 10**6, error='e' * 10**6, error_type='t' * 10**6, "
        "variables={str(n) + 'n' * 10**4: ['k' * 10**4, 'v' * 10**4] for n in range(400)}"
    )
    code = f"{WORKER}worker.channel.send(dict(ev='result', seq=m['seq'], {forged}))"
    done = session.run(code, snapshot=10)
    assert [len(text) for text in (done.shown, done.value, done.error, done.error_type)] == [
        4096,
        4096,
        20_000,
        200,
    ]
    assert len(done.variables) == 300
    for name, one in done.variables.items():
        assert [len(name), len(one.kind), one.shown] == [200, 200, "v" * 10]
    done = session.run(code)
    assert {one.shown for one in done.variables.values()} == {""}


def test_functions_that_end_an_episode_have_the_given_names(session: Session) -> None:
    printed = session.run("for f in (FINAL, FINAL_VAR, SHOW_VARS): help(f)").stdout
    assert [line for line in printed.splitlines() if "(" in line] == [
        "FINAL(value)",
        "FINAL_VAR(name)",
        "SHOW_VARS()",
    ]
    assert "which ends the episode at once" in printed
    done = session.run("FINAL()")
    assert done.error.endswith("TypeError: FINAL(value): missing a required argument: 'value'")
    assert session.run("FINAL(value=7)").final == Final("7", 7)


def test_a_module_that_cannot_be_warm_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    needs("landlock")
    made = Sandbox(Setup(warm=("json", "nope")))
    for _ in range(2):
        with pytest.raises(NotAvailable, match=r"warm='nope' cannot be imported: No module named 'nope'$"):
            made.open()
    made.close()
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_a_session_that_is_closed_says_so(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.close()
    session.close()
    with pytest.raises(NotAvailable, match="closed"):
        session.run("1")
