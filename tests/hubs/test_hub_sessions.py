"""``envweave/Hub-v0`` with the real program on a stub of the library: episodes, faults, copies, leftovers."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import psutil
import pytest
from stub_program import stub_package

import envweave_gym
from envweave_gym import messages_of, parse_action, state_of
from envweave_gym.core.faults import EnvironmentCrashed, InvalidAction, InvalidArgument
from envweave_gym.hubs.prime import hub_chats, hub_packages, hub_session

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return stub_package(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def make(stub: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes the environment with a mode of the package; closes it at the end."""
    monkeypatch.setattr(hub_chats, "find_installed", lambda hub_id: stub)
    made: list[Any] = []

    def one(mode: str = "guess", *, path: Path | None = None, rows: int = 3, **kwargs: Any) -> Any:
        args = {"mode": mode, "rows": rows, **({"path": str(path)} if path else {})}
        env = gym.make("envweave/Hub-v0", hub_id="acme/guess", env_args=args, **kwargs)
        made.append(env)
        return env

    yield one
    for env in made:
        env.close()


earlier: list[psutil.Process] = []
"""Children of this process that earlier tests have left running, such as servers that they share."""


@pytest.fixture(autouse=True)
def _earlier() -> None:
    earlier[:] = psutil.Process().children(recursive=True)


def programs() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if one not in earlier]


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(psutil.pid_exists, pids))


def test_an_episode_is_the_librarys_and_its_reward_comes_at_the_end(make: Make):
    env = make()
    observation, info = env.reset(seed=3, options={"index": 2})
    assert observation[0]["content"].startswith("Guess 2")
    assert messages_of(info) == observation
    assert (info["index"], info["tools"]) == (2, [])
    observation, reward, terminated, truncated, info = env.step("7")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert [one["role"] for one in observation] == ["user", "assistant", "user"]
    assert messages_of(info) == [{"role": "user", "content": "Not 7"}]
    observation, reward, terminated, truncated, info = env.step({"content": "2"})
    assert (reward, terminated, truncated) == (0.5, True, False)
    assert (info["metrics"], info["stop"]) == ({"turns": 1.0}, "solved")
    assert observation[-1] == {"role": "assistant", "content": "2"}
    assert state_of(env)["hub_id"] == "acme/guess@1.0.0"


def test_the_limit_of_turns_truncates(make: Make):
    env = make()
    env.reset(seed=0, options={"index": 0})
    steps = [env.step("9") for _ in range(3)]
    assert [step[1:4] for step in steps] == [(0.0, False, False), (0.0, False, False), (-1.0, False, True)]


def test_the_same_seed_gives_the_same_episode_in_the_same_and_in_another_program(make: Make):
    one, other = make(), make()
    first, again, elsewhere = one.reset(seed=11), one.reset(seed=11), other.reset(seed=11)
    assert first[0] == again[0] == elsewhere[0]
    assert {one.reset()[0][0]["content"] for _ in range(6)} != {first[0][0]["content"]}
    assert len(programs()) == 4  # a keeper and a program each


def test_a_second_reset_takes_no_new_program(make: Make):
    env = make()
    env.reset(seed=0)
    before = programs()
    start = time.perf_counter()
    env.reset(seed=1)
    assert time.perf_counter() - start < 2.0
    assert programs() == before


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("die", ["SIGKILL", "last words"]),
        ("silent", ["without a call"]),
        ("set", ["has lost its episode", "TypeError", "not JSON"]),
        ("raise", ["the tools are gone"]),
        ("error", ["SandboxError"]),
        ("stranger", ["'nobody'", "agent"]),
        ("garbage", ["HTTPError", "400"]),
    ],
)
def test_a_program_that_fails_at_once_is_a_crash_and_the_next_reset_tries_again(
    make: Make, mode: str, words: list[str]
):
    env = make(mode)
    for _ in range(2):
        with pytest.raises(EnvironmentCrashed) as caught:
            env.reset(seed=0)
        assert [word for word in words if word not in str(caught.value)] == []


def test_a_program_that_dies_in_mid_episode_is_a_fault_and_never_a_reward(make: Make):
    env = make("die later", on_fault="truncate")
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("0")
    assert (reward, terminated, truncated, info["fault"].kind) == (0.0, False, True, "crash")
    assert "exit code 4" in info["fault"].message
    env.reset(seed=0)


def test_an_end_without_the_agents_reward_is_a_fault(make: Make):
    env = make("rewardless", on_fault="truncate")
    env.reset(seed=0, options={"index": 0})
    _, reward, _, truncated, info = env.step("0")
    assert (reward, truncated, info["fault"].kind) == (0.0, True, "crash")
    assert "without a reward of agent" in info["fault"].message


def test_a_forked_child_closes_at_once_and_leaves_the_episode_to_its_parent(make: Make):
    env = make()
    env.reset(seed=0, options={"index": 0})
    if (child := os.fork()) == 0:
        begin = time.monotonic()
        env.close()
        os._exit(int(time.monotonic() - begin > 20.0))
    assert os.waitpid(child, 0)[1] == 0
    assert env.step("0")[1] == 1.0


def test_a_program_that_is_killed_while_it_waits_is_a_fault(make: Make):
    env = make(on_fault="truncate")
    env.reset(seed=0)
    for process in programs():
        process.kill()
    _, reward, _, truncated, info = env.step("0")
    assert (reward, truncated, info["fault"].kind) == (0.0, True, "crash")


def test_a_program_that_hangs_is_a_timeout(make: Make):
    env = make("hang later", step_timeout=1.5, on_fault="truncate")
    env.reset(seed=0)
    _, _, _, truncated, info = env.step("0")
    assert (truncated, info["fault"].kind) == (True, "timeout")
    env.close()
    assert programs() == []


def test_a_close_before_the_thread_that_ends_a_program_gives_it_the_same_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    class NeverBegun(threading.Thread):
        def start(self) -> None:
            """Stand for a thread that has not begun yet."""

    waits: list[float] = []
    close = hub_session._Program.close

    def closing(self: hub_session._Program, patience_s: float) -> None:
        waits.append(patience_s)
        close(self, patience_s)

    monkeypatch.setattr(hub_session._Program, "close", closing)
    env = make("hang later", step_timeout=1.0, on_fault="truncate")
    env.reset(seed=0)
    monkeypatch.setattr(hub_session, "threading", SimpleNamespace(Thread=NeverBegun, RLock=threading.RLock))
    assert env.step("0")[-1]["fault"].kind == "timeout"
    assert waits == []
    env.close()
    assert waits[0] == hub_session._CLOSE_PATIENCE_S
    assert programs() == []


def test_the_fault_of_a_program_that_does_not_end_is_reported_at_its_deadline(make: Make):
    env = make("block later", step_timeout=1.0, on_fault="truncate")
    env.reset(seed=0)
    stuck = programs()
    begin = time.monotonic()
    assert env.step("0")[-1]["fault"].kind == "timeout"
    assert time.monotonic() - begin < 1.0 + 8.0  # on a loaded machine; the program has 15 s to tear down
    assert all(one.is_running() for one in stuck)
    env.reset(seed=0)  # with another program
    for one in stuck:
        with suppress(psutil.NoSuchProcess):  # it has died with its keeper
            one.kill()
    env.close()
    assert programs() == []


@pytest.mark.parametrize("way", ["timeout", "garbage collection", "close"])
def test_a_program_that_is_ended_may_tear_down_what_it_has_started(make: Make, tmp_path: Path, way: str):
    env = make("teardown", path=tmp_path / "done", step_timeout=1.0, on_fault="truncate")
    env.reset(seed=0)
    if way == "timeout":
        assert env.step("0")[-1]["fault"].kind == "timeout"
        env.close()
    elif way == "close":
        env.close()
    else:
        env.unwrapped._chats._session._finalizer()
    assert (tmp_path / "done").read_text() == "done"
    assert programs() == []


def test_sigterm_lets_a_program_tear_down(make: Make, tmp_path: Path):
    env = make("teardown", path=tmp_path / "done", on_fault="truncate")
    env.reset(seed=0)
    (program,) = [one for one in programs() if one.cmdline()[1] == "-u"]
    program.terminate()
    assert env.step("0")[-1]["fault"].kind == "crash"
    assert (tmp_path / "done").read_text() == "done"


@pytest.mark.parametrize(("mode", "word"), [("load", "does not want to"), ("exit", "sys.exit(3)")])
def test_a_package_that_cannot_be_loaded_is_refused_by_make_and_leaves_nothing(
    make: Make, mode: str, word: str
):
    with pytest.raises(InvalidArgument) as caught:
        make(mode)
    assert word in str(caught.value)
    assert programs() == []


def test_an_empty_data_set_and_an_unknown_task_are_refused(make: Make):
    with pytest.raises(InvalidArgument, match="empty"):
        make(rows=0)
    env = make()
    for index in (3, -1, True, "0"):
        with pytest.raises(InvalidArgument, match="from 0 to 2"):
            env.reset(options={"index": index})


def test_a_copy_goes_on_in_mid_episode_with_a_program_of_its_own(make: Make):
    env = make()
    env.reset(seed=5, options={"index": 1})
    env.step("8")
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    results = [one.step("1") for one in (env, *copies)]
    assert [one[:4] for one in results] == [results[0][:4]] * 3
    assert results[0][1] == 0.5
    for one in copies:
        one.close()


def test_a_copy_of_a_program_that_does_not_repeat_itself_is_a_fault(make: Make):
    env = make("clock", on_fault="truncate")
    env.reset(seed=5)
    twin = copy.deepcopy(env)
    result = twin.step("8")
    assert result[1] == 0
    assert result[3]
    assert "does not repeat itself" in result[4]["fault"].message
    assert "fault" not in env.step("8")[4]
    twin.close()


def test_a_reset_in_mid_episode_aborts_it_and_calls_of_it_do_not_return(make: Make):
    env = make()
    for seed in range(4):
        observation, _ = env.reset(seed=seed, options={"index": seed % 3})
        assert observation[0]["content"].startswith(f"Guess {seed % 3}")


def test_closing_ends_all_processes_and_a_reset_starts_again(make: Make, tmp_path: Path):
    env = make("orphan", path=tmp_path / "pid")
    env.reset(seed=0)
    pids = [one.pid for one in programs()] + [int((tmp_path / "pid").read_text())]
    env.close()
    assert gone(pids)
    env.reset(seed=0)
    assert env.step("0")[0][1]["content"] == "0"


def test_nothing_is_left_when_the_owner_is_killed(make: Make, tmp_path: Path):
    child = os.fork()
    if child == 0:  # the owner
        env = make("orphan", path=tmp_path / "pid")
        env.reset(seed=0)
        (tmp_path / "ready").write_text(" ".join(str(one.pid) for one in programs()))
        signal.pause()
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        pids = [int(one) for one in (tmp_path / "ready").read_text().split()]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert gone([*pids, int((tmp_path / "pid").read_text())])


def test_the_program_sees_few_variables_and_no_secret(make: Make, monkeypatch: pytest.MonkeyPatch):
    from envweave_gym.hubs.prime.hub_config import HubConfig

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("HF_TOKEN", "s")
    monkeypatch.setenv("HF_HOME", "/h")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-given")
    own = HubConfig(hub_id="a/b", variables={"OPENAI_API_KEY": "env:OPENAI_API_KEY"}).environment()
    assert own["OPENAI_API_KEY"] == "sk-given"
    assert own["HF_HOME"] == "/h"
    assert {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"}.isdisjoint(own)
    assert "127.0.0.1" in own["NO_PROXY"]


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({}, "hub_id= is missing"),
        ({"hub_id": "single"}, "owner/name"),
        ({"hub_id": "a/b", "env_args": {"x": float("nan")}}, "without NaN"),
        ({"hub_id": "a/b", "env_args": [1]}, "env_args"),
        ({"hub_id": "a/b", "data": "/no/such/folder"}, "not a folder"),
        ({"hub_id": "a/b", "variables": {"A": None}}, "reference"),
        ({"hub_id": "a/b", "variables": {"A": "sk-secret"}}, "reference"),
        ({"hub_id": "a/b", "variables": {"A=B": "env:A"}}, "not the name"),
        ({"hub_id": "a/b", "split": "test"}, "split"),
        ({"hub_id": "a/b", "limit": 0}, "limit"),
        ({"hub_id": "a/b", "step_timeout": "1"}, "step_timeout"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(kwargs: dict[str, Any], word: str):
    with pytest.raises(InvalidArgument) as caught:
        envweave_gym.make("envweave/Hub-v0", **kwargs)
    assert word in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_replies_are_texts_or_objects_with_tool_calls(make: Make):
    env = make()
    env.reset(seed=0)
    for wrong in (3, {"contents": "x"}, {"tool_calls": [{"arguments": {}}]}, None):
        with pytest.raises(InvalidAction):
            env.step(wrong)
    assert parse_action(env, "<think>no</think> 7") == "7"
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert parse_action(env, call) == call  # no tool is offered
    env.unwrapped._chat.tools = [{"type": "function"}]
    assert parse_action(env, f"So: {call}") == {
        "content": "So:",
        "tool_calls": [{"name": "add", "arguments": {"a": 1}}],
    }
    write = '<tool_call> {"name": "write", "arguments": {"text": "</tool_call>}"}}\n</tool_call>'
    assert parse_action(env, f"{call} and {write}")["tool_calls"][1]["arguments"] == {"text": "</tool_call>}"}
    for wrong in (
        "<tool_call>{oops}</tool_call>",
        '<tool_call>{"name": "add"}',
        "<tool_call>[1]</tool_call>",
        "<tool_call>add(1)</tool_call>",
        f"{call}<tool_call>",
        f"<tool_call>{call}</tool_call>",
    ):
        with pytest.raises(InvalidAction, match="not a tool call"):
            parse_action(env, wrong)
    begin = time.process_time()
    for part in ("<tool_call>{", "<tool_call> "):
        with pytest.raises(InvalidAction):
            parse_action(env, part * 20_000)
    assert time.process_time() - begin < 5.0


def test_the_spaces_hold_what_is_returned_and_rendering_shows_the_chat(make: Make):
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0, options={"index": 0})
    assert observation in env.observation_space
    assert "Guess 0" in env.render()
    for _ in range(20):
        assert env.action_space.sample() in env.action_space


def test_rows_of_a_vector_have_programs_of_their_own(stub: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub_chats, "find_installed", lambda hub_id: stub)
    vector = envweave_gym.make("envweave/Hub-v0", num_envs=2, hub_id="acme/guess")
    try:
        observations, _ = vector.reset(seed=[1, 1], options=None)
        assert observations[0] == observations[1]
        _, rewards, terminated, _, _ = vector.step([observations[0][0]["content"][6], "none"])
        assert (rewards.tolist(), terminated.tolist()) == ([1.0, 0.0], [True, False])
    finally:
        vector.close()
    assert programs() == []


@pytest.mark.parametrize("api", ["parallel", "aec"])
def test_a_package_with_one_role_is_a_game_if_that_is_asked_for(
    stub: Any, monkeypatch: pytest.MonkeyPatch, api: Any
):
    for module in (hub_chats, hub_packages):
        monkeypatch.setattr(module, "find_installed", lambda hub_id: stub)
    game = envweave_gym.make("prime://acme/guess", api=api, env_args={"rows": 1})
    try:
        game.reset(seed=0)
        assert game.agents == ["agent"]
        if api == "parallel":
            _, rewards, terminated, _, infos = game.step({"agent": "0"})
            assert (rewards, terminated) == ({"agent": 1.0}, {"agent": True})
            assert infos["agent"]["stop"] == "solved"
        else:
            game.step("5")
            twin = copy.deepcopy(game)
            for one in (game, twin):
                one.step("0")
                assert one.rewards == {"agent": 0.5}
            twin.close()
    finally:
        game.close()
    assert programs() == []
