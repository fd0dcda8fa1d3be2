"""Faults as data, and exceptions that survive the way from one process to another."""

from __future__ import annotations

import copy
import pickle
import sys

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from scripted_envs import Scripted

from envweave_gym.core import faults
from envweave_gym.core.faults import (
    MAX_MESSAGE_LENGTH,
    EnvweaveError,
    Fault,
    FaultKind,
    FaultStorm,
    InvalidAction,
    InvalidArgument,
    MissingExtra,
    NotAvailable,
    ResetNeeded,
    SessionLost,
    UnknownEnvironment,
    fault_of,
    nearest,
    need,
    shown,
)

EXCEPTIONS = [
    kind for kind in vars(faults).values() if isinstance(kind, type) and issubclass(kind, EnvweaveError)
]


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_exceptions_take_one_string_and_survive_pickling(kind: type[EnvweaveError]) -> None:
    error = kind("one sentence")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == "one sentence"


def test_exceptions_are_also_what_gymnasium_and_python_call_them() -> None:
    assert issubclass(InvalidAction, (gym.error.InvalidAction))
    assert issubclass(InvalidAction, ValueError)
    assert issubclass(ResetNeeded, gym.error.ResetNeeded)
    assert issubclass(UnknownEnvironment, gym.error.UnregisteredEnv)
    assert issubclass(InvalidArgument, TypeError)
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(MissingExtra, NotAvailable)
    assert issubclass(MissingExtra, ImportError)


def test_an_argument_error_is_free_of_what_gymnasium_adds() -> None:
    text = "x takes no argument 'y'"
    error = InvalidArgument(
        f"{text} was raised from the environment creator for x with kwargs ({{'key': 1}})"
    )
    assert error.args == (text,)
    assert str(InvalidArgument("the flag was raised from below")) == "the flag was raised from below"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs what a worker raised
def test_an_exception_of_a_worker_arrives_as_it_was() -> None:
    envs = AsyncVectorEnv([lambda: Scripted([InvalidAction("x: action 9 is refused")])], context="forkserver")
    try:
        envs.reset(seed=0)
        with pytest.raises(InvalidAction, match=r"^x: action 9 is refused$"):
            envs.step([0])
    finally:
        envs.close(terminate=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom"), FaultKind.CRASH),
        (MemoryError("full"), FaultKind.CRASH),
        (TimeoutError("late"), FaultKind.TIMEOUT),
        (SessionLost("gone"), FaultKind.LOST),
        (BrokenPipeError("gone"), FaultKind.LOST),
    ],
)
def test_the_fault_of_an_exception(error: BaseException, kind: FaultKind) -> None:
    fault = fault_of(error)
    assert fault == Fault(kind, f"{type(error).__name__}: {error}", retryable=True)
    for form in (msgspec.json, msgspec.msgpack):
        assert form.decode(form.encode(fault), type=Fault) == fault
    assert pickle.loads(pickle.dumps(fault)) == fault


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("no torch"),
        AttributeError("no step"),
        NameError("no such name"),
        NotImplementedError("later"),
        SyntaxError("what?"),
        TypeError("one argument too many"),
        SystemExit(2),
        FaultStorm("ten"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fault_that_would_come_again_is_not_retryable(error: BaseException) -> None:
    assert fault_of(error) == Fault(FaultKind.CRASH, f"{type(error).__name__}: {error}", retryable=False)


def test_the_message_of_a_fault_is_short_enough_to_log_and_fit_for_the_wire() -> None:
    fault = fault_of(RuntimeError("\ud800" + "x" * 100_000))
    assert fault.message.startswith("RuntimeError: \\ud800xxx")
    assert len(fault.message) <= MAX_MESSAGE_LENGTH + 5
    msgspec.json.encode(fault)


def test_a_fault_is_frozen() -> None:
    with pytest.raises(AttributeError):
        fault_of(RuntimeError()).kind = FaultKind.LOST  # pyright: ignore


def test_need_imports_what_is_there() -> None:
    assert need("json", "demo", "x") is sys.modules["json"]


def test_need_names_the_pip_command() -> None:
    line = r"^drawing needs no_such_module, which is not installed: pip install 'envweave-gym\[demo\]'$"
    with pytest.raises(MissingExtra, match=line):
        need("no_such_module", "demo", "drawing")
    with pytest.raises(MissingExtra, match=r"needs no_such_module\.part"):
        need("no_such_module.part", "demo", "drawing")
    with pytest.raises(MissingExtra, match=r": pip install 'plug\[arm\]'$"):
        need("no_such_module", "arm", "moving", package="plug")
    with pytest.raises(MissingExtra, match=r": pip install plug$"):
        need("no_such_module", None, "moving", package="plug")


def test_need_does_not_blame_an_extra_for_an_error_inside_a_module(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")  # pyright: ignore
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        need("half_installed", "demo", "drawing")
    assert not isinstance(caught.value, MissingExtra)


def test_nearest_names() -> None:
    assert nearest("lenght", ["length", "slip"]) == " (did you mean 'length'?)"
    assert nearest("colour", ["color", "colours"]) == " (did you mean 'colours' or 'color'?)"
    assert nearest("xyz", ["length", "slip"]) == ""


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("do not look")


def test_values_are_shown_short_whatever_they_are() -> None:
    assert shown("ab") == "'ab'"
    assert len(shown("x" * 1000)) == 80
    assert shown(np.zeros((2, 1))) == "array([[0.], [0.]])"
    assert shown(10**5000) == "<int>"
    assert shown(Shy()) == "<Shy>"
