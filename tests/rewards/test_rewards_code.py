"""Safety and quality of programs, bare or in the fences of a reply; no text makes a transform raise."""

from __future__ import annotations

import os
import sys
import tracemalloc
import warnings
from typing import Any

import pytest
from arithmetic_env import run
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import until

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.rewards import program_reading
from envweave_gym.rewards.program_reading import MAX_DOTTED, MAX_SOURCE, parse
from envweave_gym.rewards.transforms import (
    CodeQuality,
    CodeSafety,
    MathAnswer,
    math_transform,
    safe_transform,
)


@pytest.mark.parametrize(("length", "reward"), [(100, 0.1), (101, 0.0)])
def test_brevity_is_measured_without_surrounding_space(length: int, reward: float) -> None:
    assert CodeQuality()("\n\n" + "x" * length + "\n  ", None, {}) == reward


VIOLATIONS = {
    "import os": {"os"},
    "import os.path as p": {"os"},
    "import math, subprocess": {"subprocess"},
    "from subprocess import run": {"subprocess"},
    "from os import *": {"os"},
    "from urllib import request": {"urllib.request"},
    "from random import _os": {"os"},
    "from io import open as o": {"open"},
    "if True:\n    def f():\n        import shutil": {"shutil"},
    "eval('1')": {"eval"},
    "exec('1')": {"exec"},
    "open('x')": {"open"},
    "e = eval; e('1')": {"eval"},
    "print(f'{open(1)}')": {"open"},
    "@exec\nclass A: pass": {"exec"},
    "\uff45\uff56\uff41\uff4c('1')": {"eval"},
    "__import__('o'+'s')": {"__import__"},
    "importlib.import_module('o' + 's')": {"importlib"},
    "import importlib as i\ni.import_module('os')": {"importlib"},
    "builtins.eval('1')": {"builtins"},
    "import builtins as b; b.eval('1')": {"builtins"},
    "os.system('ls')": {"os"},
    "getattr(__builtins__, 'ev'+'al')": {"__builtins__", "getattr"},
    "getattr(x, name)": {"getattr"},
    "getattr(x, '__bases__')": {"__bases__"},
    "getattr(*x)": {"getattr"},
    "g = getattr": {"getattr"},
    "from operator import attrgetter as a": set(),
    "from operator import attrgetter\nattrgetter('__class__.__base__')(())": {"__base__"},
    "import operator\noperator.methodcaller('__sub' + 'classes__')": {"methodcaller"},
    "().__class__.__bases__[0].__subclasses__()": {"__bases__", "__subclasses__"},
    "print.__self__": {"__self__"},
    "(lambda: 0).__globals__": {"__globals__"},
    "(i for i in ()).gi_frame.f_back": {"gi_frame", "f_back"},
    "match ():\n    case object(__class__=object(__base__=b)): pass": {"__base__"},
    "globals()['x']": {"globals"},
    "import sys as s; s.modules['os']": {"modules"},
    "import sys; t = sys; t.modules": {"modules"},
    "sys.modules": {"modules"},
    "io.open('x')": {"open"},
    "import platform; platform.os": {"os"},
    "import json; json.codecs.builtins.open": {"builtins", "open"},
    "import _io": {"_io"},
    "import numpy as np; np.load('x')": {"numpy.load"},
    "from numpy import memmap": {"numpy.memmap"},
    "x.tofile('y')": {"tofile"},
    "from _io import StringIO": {"_io"},
    "import _pyio": {"pyio"},
    "import numpy.ctypeslib": {"ctypeslib"},
    "import numpy.ctypeslib as c": {"ctypeslib"},
    "from numpy import ctypeslib": {"ctypeslib"},
    "from numpy.ctypeslib import load_library": {"ctypeslib"},
    "import numpy as np\nnp.ctypeslib.load_library": {"ctypeslib"},
    "import torch.multiprocessing": {"multiprocessing"},
    "'{0.__class__.__mro__}'.format(x)": {"__mro__"},
    "'{0.__class__.__mro__[1].__subclasses__}'.format_map(x)": {"__mro__", "__subclasses__"},
    "t = '{f.__globals__[secret]}'\nt.format(f=f)": {"__globals__"},
    "str.format('{:{0.__dict__}}', x)": {"__dict__"},
    "getattr('{0.__code__}', 'format')(f)": {"__code__"},
    "import string; string.Formatter().vformat('{0.__self__}', [print], {})": {"__self__"},
    "f'{x.__mro__}'": {"__mro__"},
    "f'{{0.__mro__}}'.format(x)": {"__mro__"},
    # processes
    "import asyncio\nawait asyncio.create_subprocess_exec('ls')": {"create_subprocess_exec"},
    "asyncio.run(asyncio.create_subprocess_shell('ls'))": {"create_subprocess_shell"},
    "from asyncio import create_subprocess_shell as run": {"create_subprocess_shell"},
    "from asyncio import *\ncreate_subprocess_exec('ls')": {"create_subprocess_exec"},
    "asyncio.get_event_loop().subprocess_shell(f, 'ls')": {"subprocess_shell"},
    "import asyncio.subprocess": {"subprocess"},
    "import concurrent.futures as c\nc.ProcessPoolExecutor()": {"ProcessPoolExecutor"},
    "from concurrent import futures\nfutures.process.ProcessPoolExecutor": {"ProcessPoolExecutor"},
    "from concurrent.futures import ProcessPoolExecutor": {"ProcessPoolExecutor"},
    "from concurrent.futures import *\nProcessPoolExecutor()": {"ProcessPoolExecutor"},
    "import pty; pty.spawn('sh')": {"pty"},
    "from posix import posix_spawn": {"posix"},
    "get_ipython().system('ls')": {"get_ipython"},
    "import pip": {"pip"},
    # text that is run
    "import timeit\ntimeit.timeit('1')": {"timeit.timeit"},
    "timeit.repeat(x)": {"timeit.repeat"},
    "import timeit as t; u = t\nu.Timer('1').timeit()": {"timeit.Timer"},
    "from timeit import repeat": {"timeit.repeat"},
    "from timeit import *\ntimeit('1')": {"timeit.timeit"},
    "getattr(timeit, 'timeit')('1')": {"timeit.timeit"},
    "import cProfile; cProfile.run('1')": {"cProfile.run"},
    "from profile import run": {"profile.run"},
    "import trace\ntrace.Trace().run('1')": {"trace.Trace"},
    "import code; code.interact()": {"code"},
    "import runpy": {"runpy"},
    "import doctest": {"doctest"},
    "import pdb": {"pdb"},
    "import pickle; pickle.loads(b)": {"pickle"},
    "import _pickle": {"pickle"},
    "import types; types.CodeType(*x)": {"types.CodeType"},
    "import _xxsubinterpreters": {"xxsubinterpreters"},
    # modules, in other ways
    "from importlib import import_module": {"importlib"},
    "import _frozen_importlib": {"frozen_importlib"},
    "import pydoc; pydoc.locate('os')": {"pydoc"},
    "math.__loader__.load_module('os')": {"__loader__", "load_module"},
    "import sys; sys.meta_path[0].load_module('os')": {"meta_path", "load_module"},
    "from sys import *\nmodules['os']": {"sys.*"},
    "builtins.__import__('os')": {"builtins", "__import__"},
    "getattr(__builtins__, '__import__')('os')": {"__builtins__", "__import__"},
    "import inspect; inspect.getattr_static(x, '__glo' + name)": {"getattr_static"},
    "import gc; gc.get_objects()": {"gc.get_objects"},
    "import json; c = json.codecs; c.builtins": {"builtins"},
    "import ctypes": {"ctypes"},
    # files and the network
    "import urllib; urllib.request.urlopen(u)": {"urllib.request"},
    "import http; http.client": {"http.client"},
    "import asyncio; asyncio.open_connection('host', 80)": {"asyncio.open_connection"},
    "import ssl": {"ssl"},
    "import logging; logging.FileHandler('x')": {"logging.FileHandler"},
    "import zipfile": {"zipfile"},
}


@pytest.mark.parametrize("code", VIOLATIONS)
def test_violations_are_found_by_name(code: str) -> None:
    found = CodeSafety().violations(code)
    assert set(found) == VIOLATIONS[code]
    assert CodeSafety()(code, None, {}) == (-1.0 if found else 0.0)


@pytest.mark.parametrize(
    "code",
    [
        "# import os",
        "'import os'",
        '"""\nimport os\neval(1)\n"""',
        "print('open(1) __import__ eval(2)')",
        "import math, random, json, re, sys",
        "import osmium",
        "from math import *",
        "evaluate(1); reopen(2); opener = 3",
        "door.open(); model.eval(); frame.eval('a + b'); model.modules()",
        "re.compile('a')",
        "import re; re.compile('a')",
        "getattr(x, 'name')",
        "getattr(x, 'name', None)",
        "type(error).__name__; self.__class__.__name__; super().__init__()",
        "code = 'x'; code.strip()",
        "self.os = 'linux'; self.os",
        "import sys; sys.stdout.write('x')",
        "import io; io.StringIO('x')",
        "f(os=1, eval=2)",
        "import io, numpy, numpy.linalg",
        "'{0.name}'.format(x)",
        "'{0.__class__.__name__}: {1:.3f} {2!r} {x[key]}'.format(a, b, c, x=d)",
        "'{} is the __dict__'.format(x)",
        "'{0.__mro__}'",
        "f'{x.name:>{width}}'",
        "'{name}'.format_map({'name': 1}) + '{'",
        "import timeit; timeit.default_timer()",
        "import asyncio; asyncio.run(main()); asyncio.gather(a, b)",
        "from concurrent.futures import ThreadPoolExecutor, as_completed",
        "import itertools, threading; itertools.repeat(1); threading.Timer(1, f)",
        "import numpy as np; np.trace(m); np.linalg.trace(m)",
        "profile = load(); profile.run(); trace.Trace",
        "import gc; gc.collect()",
        "import types; types.FunctionType, types.SimpleNamespace()",
        "import logging; logging.getLogger().info('x')",
        "import urllib.parse; urllib.parse.quote('x'); from http import HTTPStatus",
        "from math import *\ncode = sqrt(2); code",
        "pool.create_connection(); self.modules; loader.repeat('x')",
        "import os as",
        "eval(",
        "",
    ],
)
def test_innocent_or_unparsable_code_is_no_violation(code: str) -> None:
    assert CodeSafety().violations(code) == ()
    assert CodeSafety()(code, None, {}) == 0.0


def fenced(*programs: str) -> str:
    """A reply with a word to each program."""
    return "\n\n".join(f"Step {i} of it:\n```python\n{code}\n```" for i, code in enumerate(programs))


@pytest.mark.parametrize(
    "reply",
    [
        fenced("import os"),
        fenced("1 + 1", "import os"),
        fenced("f(:", "import os"),
        "Look:\r\n```py\r\nimport os\r\n```\r\nDone.",
        "No language, no end:\n```\nimport os",
        "Tildes:\n~~~\nimport os\n~~~",
        "Another language:\n```text\nimport os\n```",
        "1. In a list:\n\n    ```python\n    import os\n    ```",
        "In the middle of a line: ```python\nimport os```",
        "````python\ns = '```'\nt = '''\n```\n'''\nimport os\n````",
        "> Quoted:\n>\n> ```python\n> import os\n> ```",
        "> ```python\n>import os\n> ```\nand on.",
        "> > Twice:\n> > ```python\n> > if 1 > 0:\n> >\n> >     import os\n> > ```",
        ">> ~~~\n>> import os",
        "> 1. In a list:\n>\n>    ```python\n>    import os\n>    ```",
        "> Only the first line: ```python\nimport os\n```",
    ],
)
def test_the_code_in_the_fences_of_a_reply_is_judged(reply: str) -> None:
    assert CodeSafety().violations(reply) == ("os",)
    assert CodeSafety(allow=("os",))(reply, None, {}) == 0.0


@pytest.mark.parametrize(
    "reply",
    [
        fenced("print('hello')"),
        "Do not `import os`! Rather:\n" + fenced("1 + 1"),
        "import os\n\nis what I would not write.",
        'reply = """\n```python\nimport os\n```\n"""',
    ],
)
def test_text_outside_of_fences_is_no_violation(reply: str) -> None:
    assert CodeSafety().violations(reply) == ()


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("so " * 50 + fenced("1 + 1"), 0.1),
        (fenced("x" * 101), 0.0),
        (fenced("x" * 60, "y" * 60), 0.0),
        (fenced("f(:"), -0.1),
        (fenced("1 + 1", "f(:"), -0.1),
        ("Nothing:\n```\n```" + " " * 100, 0.1),
        ("so " * 50, -0.2),
    ],
)
def test_quality_of_a_reply_is_that_of_all_the_code_in_its_fences(reply: str, reward: float) -> None:
    assert CodeQuality()(reply, None, {}) == pytest.approx(reward)


def test_a_fenced_answer_earns_what_the_bare_one_does() -> None:
    answer = math_transform(42)
    for code in ("21 * 2", "import os", "f(:"):
        info = {"result": run(code)}
        quoted = "".join(f"> {line}\n" for line in fenced(code).splitlines())
        for reply in (fenced(code), quoted):
            assert answer(reply, None, info) == answer(code, None, info)


def test_the_prompts_of_a_session_are_no_block_quote() -> None:
    assert CodeSafety().violations(fenced(">>> import os")) == ()


def test_unsafe_names_can_be_allowed() -> None:
    safety = CodeSafety(allow=("pathlib", "open"))
    assert safety("import pathlib\nopen('x')", None, {}) == 0.0
    assert safety.violations("import pathlib, os\nopen('x')") == ("os",)
    assert CodeSafety(allow=["timeit.timeit"])("import timeit; timeit.timeit(f)", None, {}) == 0.0


@pytest.mark.parametrize(
    ("allow", "complaint"),
    [
        ("os", r"allow takes the names of violations, not 'os'; give a tuple"),
        (None, "allow takes the names of violations, not None"),
        (("os", "pathlb"), r"'pathlb' is no violation to be allowed \(did you mean .*'pathlib'"),
        ((["os"],), r"\['os'\] is no violation"),
    ],
)
def test_unknown_names_cannot_be_allowed(allow: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^CodeSafety: {complaint}"):
        CodeSafety(allow=allow)


def deep(depth: int, call: Any) -> Any:
    return call() if depth == 0 else deep(depth - 1, call)


def test_a_text_earns_the_same_however_deep_the_stack_it_is_judged_on() -> None:
    code = "import os\nx" + ".a" * 2_500
    assert judged_at_depth(code, 600) == judged_at_depth(code, 0) == -1.0


def judged_at_depth(code: str, depth: int) -> float:
    code += f" # {depth}"
    return deep(depth, lambda: CodeSafety()(code, None, {}))


UNREADABLE = {
    "parentheses": "(" * 10_000,
    "signs": "-" * 20_000 + "1",
    "attributes": "a" + ".b" * 20_000,
    "sum": "1" + "+1" * 20_000,
    "negations": "not " * 10_000 + "1",
    "NUL": "import os\0",
    "surrogate": "'\ud800'",
    "digits": "9" * 5_000,
    "fields": "f'" + "{" * 300,
    "fences": "```a" * 10_000,
    "ticks": "`" * 40_000,
}


@pytest.mark.parametrize("code", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_code_python_cannot_read_is_bad_quality_but_no_violation(code: str) -> None:
    assert CodeSafety()(code, None, {}) == 0.0
    assert CodeQuality()(code, None, {}) == pytest.approx(-0.1 if len(code) <= 100 else -0.2)


def test_code_too_long_to_read_is_not_vouched_for() -> None:
    code = "# " + "x" * MAX_SOURCE + "\nimport os"
    assert CodeSafety().violations(code) == ("length",)
    assert safe_transform()(code, None, {"result": {"success": True}}) == pytest.approx(-1.2)


def test_warnings_about_the_text_are_neither_shown_nor_mistaken_for_errors() -> None:
    filters = list(warnings.filters)
    for action in ("error", "always"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            assert CodeQuality()(f"r = '\\d'; q = 1if r else 2 # {action}", None, {}) == 0.1
        assert caught == []
    assert warnings.filters == filters


# Whatever text

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
TOKENS = [
    "import os",
    "from ",
    "    ",
    "eval",
    "getattr",
    "__class__",
    " if ",
    "lambda ",
    "match ",
    "case ",
    "await ",
]
TOKENS += ["```", "```python\n", "\n~~~\n", "\n> ", "> > ```\n", "{0.__mro__}", ".format("]
TOKENS += ["from timeit import *\n", "timeit."]
TOKENS += ['"""', "f'", "\\d", "\\N{", ":=", "0x1", "nan", "1e999", "1/0", "Fraction(", "np.float64("]
TOKENS += [*".()[]{}:'\"@=*,-#j1\n\r\x0c\0\ud800"]
FRAGMENTS = st.lists(st.sampled_from(TOKENS), max_size=30).map("".join)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(text=ANY_TEXT | FRAGMENTS, value=ANY_TEXT | FRAGMENTS | st.none(), success=st.booleans())
def test_no_text_makes_a_transform_raise(text: str, value: str | None, success: bool) -> None:
    result = {"value": value, "success": success, "stdout": text}
    for expected in (42, "text", [1, "a"], 1 + 2j, True, None):
        for reward in (
            math_transform(expected)(text, result, {}),
            MathAnswer(expected)(text, "", {"result": result}),
        ):
            assert -1.2 <= reward <= 1.1
    assert -1.2 <= safe_transform()(text, text, {"result": result}) <= 1.1


def test_the_recursion_limit_is_left_alone() -> None:
    limit = sys.getrecursionlimit()
    CodeSafety()("b" + ".b" * 20_000, None, {})
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "code",
    [
        "import a" + ".a" * 24_000,
        "import a" + " . a" * 12_000,
        "import b, a" + ".\\\na" * 12_000,
        "from ..a" + ".a" * 24_000 + " import b",
        "x = 1\n```python\nimport a" + ".a" * 24_000 + "\n```",
        "import " + "\u00e9." * 24_000 + "a",
    ],
)
def test_a_module_with_a_long_name_is_not_parsed(code: str) -> None:
    assert CodeSafety().violations(code) == ("length",)
    assert parse(code) is None


def test_other_chains_of_names_are_parsed() -> None:
    chain = "x" + ".a" * (MAX_DOTTED - 1)
    assert CodeSafety().violations(f"import {chain}, os") == ("os",)
    assert CodeSafety().violations(f"y = {chain}{chain}.mro") == ("mro",)


def test_names_from_a_module_with_a_long_name_are_not_put_together() -> None:
    names = ", ".join(f"b{number}" for number in range(3_800))
    tracemalloc.start()
    try:
        assert CodeSafety().violations(f"from {'a' * 22_000} import {names}, os") == ("os",)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_process_forked_while_another_thread_parses_can_parse() -> None:
    with program_reading._filtering.value:  # as a row's thread has it, which is not there in the child
        child = os.fork()
        if child == 0:
            os._exit(0 if parse('x = "\\d"') is not None else 1)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([status] * (pid == child))
        return bool(ended)

    try:
        until(has_ended, 10)
    finally:
        if not ended:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert ended == [0]
