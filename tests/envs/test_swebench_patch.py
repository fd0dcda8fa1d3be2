"""An issue is shown, the reply is a diff, and what becomes of it is the reward."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import pytest
from engines import client, ours
from swebench_rows import NUMBERS, TEXT, TOY, at_import, edit, new_file
from toy_images import images

import envweave_gym as ew
from envweave_gym.core.faults import FaultKind, InvalidAction, InvalidArgument
from envweave_gym.envs.swebench import patching as swebench_patch
from envweave_gym.envs.swebench.patching import APPLIES, MAX_REPLY, SOME_PASS, SWEBenchPatchEnv, shaped
from envweave_gym.episode.message import messages_of
from envweave_gym.episode.stream import EventKind, stream_of
from envweave_gym.episode.trainable import trainable
from envweave_gym.swebench import open_workspaces
from envweave_gym.swebench.evaluation import Evaluation
from envweave_gym.swebench.repository_commands import RepositoryCommand, command_in
from envweave_gym.swebench.unpatched_pass_rates import Baselines
from envweave_gym.wire.messages import Create
from envweave_gym_server.offers.offers import offers_of

__all__ = ["client", "images"]
ID = "envweave/SWEBenchLitePatch-v0"
KEYS = {
    *("index", "split", "instance_id", "applied", "apply_cmd", "resolved", "f2p", "p2p"),
    *("problem", "violations", "log_tail", "timings", "stream", "seq"),
}


def made(**kwargs: Any) -> Any:
    return gym.make(ID, dataset="synthetic", **{"evaluation": "docker", "timeout": 30, **kwargs})


def reply(diff: str) -> str:
    return f"I would change this:\n\n```diff\n{diff}```\n"


# Without a place to try anything


def test_the_prompt_has_the_issue_and_nothing_of_its_patches() -> None:
    env = made()
    for index, one in enumerate(TOY):
        observation, info = env.reset(options={"index": index})
        assert one.problem_statement.strip() in observation
        assert (info["instance_id"], info["index"], info["split"]) == (one.instance_id, index, "test")
        for hidden in (*one.fail_to_pass, *one.test_files, one.patch):
            assert hidden not in observation
        assert messages_of(info) == [{"role": "user", "content": observation}]
    env.close()


@pytest.mark.parametrize(
    "action",
    [
        "",
        "I do not know.",
        reply(new_file("conftest.py", "x = 1")),
        "```diff\n```",
        f"<think>{reply(TOY[0].patch)}",
    ],
)
def test_a_refused_patch_earns_nothing_and_opens_no_workspace(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    env = made(reward="shaped")
    observation, info = env.reset(seed=3)
    again, reward, terminated, truncated, after = env.step(action)
    assert (again, reward, terminated, truncated) == (observation, 0.0, True, False)
    assert set(info) == set(after) == KEYS
    assert {key: type(value) for key, value in info.items()} == {
        key: type(value) for key, value in after.items()
    }
    assert (after["applied"], after["resolved"], after["f2p"]) == (False, False, 0.0)
    assert len(after["violations"]) == 1
    assert trainable(after)


def test_a_reply_that_is_too_long_is_no_action_and_the_episode_goes_on() -> None:
    env = made()
    env.reset(seed=1)
    with pytest.raises(InvalidAction):
        env.step("x" * 10_000_000)
    assert env.step("x" * MAX_REPLY)[2]


def test_a_chat_has_all_that_was_said() -> None:
    env = made(observation="chat", turns=3)
    observation, _ = env.reset(seed=1)
    assert [one["role"] for one in observation] == ["user"]
    observation, reward, terminated, truncated, info = env.step("Let me think.")
    assert [one["role"] for one in observation] == ["user", "assistant", "user"]
    assert "neither a diff nor a command" in observation[-1]["content"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation in env.observation_space
    assert messages_of(info) == [observation[-1]]


def test_the_last_turn_is_final_whatever_it_says() -> None:
    env = made(turns=2)
    env.reset(seed=1)
    assert env.step("Hm.")[2:4] == (False, False)
    assert env.step("ls")[2:4] == (True, False)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ls", RepositoryCommand("ls")),
        ("ls toolbox\n", RepositoryCommand("ls", ("toolbox",))),
        ("$ cat 'a b.py' 3-9", RepositoryCommand("cat", ("a b.py", "3-9"))),
        ("grep 'def x' toolbox\nwhere is it?", RepositoryCommand("grep", ("def x", "toolbox"))),
        (
            f"test tests/test_x.py\n{reply(TEXT.patch)}",
            RepositoryCommand("test", ("tests/test_x.py",), TEXT.patch),
        ),
        ("lsof", None),
        ("I will ls toolbox", None),
        ("", None),
    ],
)
def test_a_look_is_read_from_the_first_line(text: str, command: RepositoryCommand | None) -> None:
    assert command_in(text) == command


@pytest.mark.parametrize(
    "text", ["cat", "cat x y", "ls a b", "grep", "cat 'x", "cat x\0y", "grep a b c", "test -x"]
)
def test_a_look_that_cannot_be_had_says_why(text: str) -> None:
    found = command_in(text)
    assert found is not None
    assert found.wrong


def test_shaping_pays_for_parts_and_never_as_much_as_for_the_whole() -> None:
    assert shaped(Evaluation(applied=True, resolved=True, f2p=1.0, p2p=1.0), 0.0) == 1.0
    assert shaped(Evaluation(), 0.0) == 0.0
    assert shaped(Evaluation(applied=True), 0.0) == APPLIES
    half = Evaluation(applied=True, f2p=0.5, p2p=1.0)
    assert shaped(half, 0.0) == pytest.approx(APPLIES + SOME_PASS / 2)
    assert shaped(half, 0.5) == APPLIES
    assert shaped(Evaluation(applied=True, f2p=1.0, p2p=0.5), 0.0) == pytest.approx(APPLIES + SOME_PASS / 2)
    assert shaped(Evaluation(applied=True, f2p=1.0, p2p=0.9), 1.0) == APPLIES


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"evaluation": "cloud"}, "evaluation='cloud' is unknown; there are 'docker' and 'local'"),
        ({"reward": "dense"}, "reward='dense' is unknown; there are 'binary' and 'shaped'"),
        ({"tests": "few"}, "tests='few' is unknown"),
        ({"max_tests": -1}, "max_tests=-1 is no number of tests"),
        ({"timeout": 0}, "timeout=0 is no number of seconds"),
        ({"timeout": float("nan")}, "timeout=nan is no number of seconds"),
        ({"turns": 0}, "turns=0 is no number of replies"),
        ({"at_once": 0}, "at_once=0 is no number of evaluations"),
        ({"observation": "image"}, "observation='image' is unknown; there are 'text' and 'chat'"),
        ({"evaluation_kwargs": 3}, "evaluation_kwargs=3 is no dict"),
        ({"evaluation_kwargs": {"memory": "no size"}}, "memory='no size' is no size"),
        ({"evaluation_kwargs": {"pids": 0}}, "pids=0 is no number of processes"),
        ({"evaluation_kwargs": {"pull": "yes"}}, "pull='yes' is not True or False"),
        ({"evaluation_kwargs": {"keep_images": 0}}, "keep_images=0 is no number of images"),
        ({"evaluation": "local", "evaluation_kwargs": {"memory": 1}}, "memory=1 is no size"),
        ({"evaluation": "local", "evaluation_kwargs": {"pids": 1.5}}, "pids=1.5 is no number of processes"),
        ({"evaluation": "local", "evaluation_kwargs": {"isolation": "none"}}, "isolation='none' does not"),
        ({"evaluation": "local", "evaluation_kwargs": {"repos": 3}}, "repos=3 is no text"),
        ({"evaluation": "local", "evaluation_kwargs": {"python": 3}}, "python=3 is no text"),
        (
            {"evaluation_kwargs": {"memroy": "1g"}},
            r"have 'memroy', which evaluation='docker' does not take \(did you mean 'memory'\?\)",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        made(**wrong)


def test_only_what_has_no_official_images_is_tried_locally_unless_it_is_said(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"\n".join(msgspec.json.encode(one) for one in TOY))
    for dataset, evaluation, place in (
        ("synthetic", None, "local"),
        ("synthetic", "docker", "docker"),
        (str(rows), None, "docker"),
        (str(rows), "local", "local"),
    ):
        assert SWEBenchPatchEnv(dataset=dataset, evaluation=evaluation).trial.backend == place


@pytest.mark.parametrize("place", ["local", "docker"])
def test_a_client_of_a_server_does_not_say_where_patches_are_tried(place: str) -> None:
    offer = offers_of([ID])[ID]
    with pytest.raises(InvalidArgument, match="evaluation"):
        offer.make(Create(ID, "gym", {"dataset": "synthetic", "evaluation": place}))


def test_a_fault_of_the_place_is_no_reward_and_is_not_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    env = made()
    env.reset(options={"index": 0})
    _, reward, terminated, truncated, info = env.step(reply(TEXT.patch))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "no container engine answers" in info["fault"].message
    assert not info["fault"].retryable
    assert not trainable(info)
    assert stream_of(info).of_kind(EventKind.FAULT)
    env = made(turns=3)
    env.reset(options={"index": 0})
    _, reward, terminated, truncated, info = env.step("ls")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["fault"].kind, info["fault"].retryable) == (FaultKind.CRASH, False)


# In containers


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("diff", "binary", "parts"),
    [
        (NUMBERS.patch, 1.0, 1.0),
        (edit("toolbox/numbers.py", "ordered[len(ordered) // 2]", "mean(ordered[:2])"), 0.0, None),
        (edit("toolbox/text.py", "words", "words"), 0.0, 0.0),
    ],
    ids=["gold", "half", "nothing"],
)
def test_a_diff_is_worth_what_its_tests_say(diff: str, binary: float, parts: float | None) -> None:
    for reward, worth in (("binary", binary), ("shaped", parts)):
        env = made(reward=reward)
        env.reset(options={"index": 1})
        _, earned, terminated, truncated, info = env.step(reply(diff))
        assert (terminated, truncated) == (True, False)
        if worth is None:  # of two tests one passes, and another one of three does no more
            worth = APPLIES + SOME_PASS * 0.5 * info["p2p"]
            assert (info["applied"], info["resolved"], info["f2p"]) == (True, False, 0.5)
        assert earned == pytest.approx(worth)
        env.close()


@pytest.mark.usefixtures("images")
def test_only_what_counts_is_graded() -> None:
    for tests, resolved in (("all", False), ("fail_to_pass", True)):
        env = made(tests=tests)
        env.reset(options={"index": 0})
        info = env.step(at_import("words = len", fixed=True))[4]
        assert info["resolved"] == resolved
        assert info["f2p"] == 1.0


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("evaluation", ["docker", "local"])
def test_looks_show_the_repository_and_change_nothing(evaluation: str, client: Any) -> None:
    env = made(turns=10, evaluation=evaluation)
    env.reset(options={"index": 0})

    def seen(action: str) -> str:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert set(info) == KEYS
        return observation

    assert "text.py" in seen("ls toolbox")
    assert seen("cat toolbox/text.py 1-1") == '"""Words and lines."""\n'
    assert seen("grep 'def sho.*' toolbox").startswith("toolbox/text.py:10:def shorten")
    for outside in ("cat ../../etc/passwd", "cat /../../etc/passwd"):
        assert "root:" not in seen(outside)
    ran = seen(f"test tests/test_text.py\n{reply(at_import('print(40 + 2)'))}")
    assert ran.startswith("42\n")
    assert "PASSED tests/test_text.py::test_what_is_short_stays" in ran
    assert "40 + 2" not in seen("cat toolbox/text.py")
    refused = seen(f"test\n{reply(new_file('conftest.py', 'x = 1'))}")
    assert refused.startswith("the diff is refused: it touches 'conftest.py'")
    twin = copy.deepcopy(env)
    assert pickle.loads(pickle.dumps(env.unwrapped)).step(reply(TEXT.patch))[1] == 1.0
    assert env.step(reply(TEXT.patch))[1:4] == (1.0, True, False)
    assert twin.step("ls")[0] == ".gitignore\nREADME.md\ntests/\ntoolbox/\n"
    for one in (env, twin):
        one.close()
    assert ours(client) == []


@pytest.mark.usefixtures("images")
def test_looks_and_the_patch_share_a_container_until_something_is_tested(client: Any) -> None:
    def containers() -> list[str]:
        return [one.id for one in ours(client)]

    env = made(turns=6)
    env.reset(options={"index": 0})
    assert containers() == []
    env.step("ls")
    first = containers()
    env.step("cat README.md")
    assert (len(first), containers()) == (1, first)
    env.step(f"test tests/test_text.py\n{reply(at_import('x = 1'))}")
    assert containers() == []
    env.step("ls")
    assert len(containers()) == 1
    assert containers() != first
    _, reward, _, _, info = env.step(reply(TEXT.patch))
    assert (reward, containers()) == (1.0, [])
    assert info["timings"]["start"] < 0.1  # it was there already
    env.reset(options={"index": 0})
    env.step("ls")
    env.reset(options={"index": 1})
    assert containers() == []
    env.close()


@pytest.mark.usefixtures("images")
def test_few_episodes_keep_a_container_between_their_steps(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_workspaces, "MAX_RETAINED", 1)
    one, other = made(turns=4), made(turns=4)
    for env in (one, other, one):
        env.reset(options={"index": 0})
        assert "README.md" in env.step("ls")[0]
        assert len(ours(client)) == 1
    assert other.step(reply(TEXT.patch))[1] == 1.0
    for env in (one, other):
        env.close()
    assert ours(client) == []


@pytest.mark.usefixtures("images")
def test_tests_that_do_not_end_are_no_end_of_the_episode(client: Any) -> None:
    env = made(turns=4, timeout=2)
    env.reset(options={"index": 0})
    waits = at_import("import time\ntime.sleep(100)")
    assert "did not end within 2 s" in env.step(f"test tests/test_text.py\n{reply(waits)}")[0]
    assert ours(client) == []
    assert "README.md" in env.step("ls")[0]
    env.close()


@pytest.mark.usefixtures("images")
def test_of_an_episode_that_is_dropped_between_its_steps_nothing_is_left(client: Any) -> None:
    opened: list[int] = []
    for _ in range(2):
        for evaluation in ("docker", "local"):
            env = made(turns=3, evaluation=evaluation)
            env.reset(options={"index": 0})
            assert "README.md" in env.step("ls")[0]
            del env
        gc.collect()
        assert ours(client) == []
        opened.append(len(os.listdir("/proc/self/fd")))
    assert opened[1] <= opened[0]


@pytest.mark.usefixtures("images")
def test_a_vector_and_a_server_give_the_same_as_one_here() -> None:
    docker = {"dataset": "synthetic", "evaluation": "docker", "timeout": 30}
    vector = ew.make(ID, num_envs=2, **docker)
    vector.reset(options={"index": 0})
    _, rewards, terminated, _, infos = vector.step((reply(TEXT.patch), "nothing"))
    assert list(rewards) == [1.0, 0.0]
    assert list(terminated) == [True, True]
    assert list(infos["resolved"]) == [True, False]
    vector.close()
    remote = gym.make(ID, backend="subprocess", **docker)
    remote.reset(options={"index": 0})
    _, reward, terminated, truncated, info = remote.step(reply(TEXT.patch))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["resolved"] is True
    assert info["timings"]["tests"] > 0
    assert "PASSED tests/test_text.py::test_the_dots_count" in info["log_tail"]
    remote.close()


@pytest.mark.usefixtures("images")
def test_the_baseline_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SWEBenchPatchEnv(dataset="synthetic", evaluation="docker", reward="shaped", timeout=30)
    known = Baselines()
    monkeypatch.setattr(swebench_patch, "BASELINES", known)
    patch = reply(at_import("words = len", fixed=True))  # it breaks what passed before
    for _ in range(2):
        env.reset(options={"index": 0})
        _, reward, _, _, info = env.step(patch)
        assert info["f2p"] == 1.0
        assert reward == pytest.approx(APPLIES + SOME_PASS * info["p2p"])
    assert len(known) == 1
    assert known.pass_rate(TEXT, env.trial) == 0.0
