"""REPL as a team: the sub-calls of root's programs are requests to other agents."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pettingzoo
import pytest
from repl_world import REPL, TEAM

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.episode.stream import EventKind

BATCH = "answers = llm_query_batched(['a', 'b', 'c'])\nFINAL('|'.join(answers))"


class Team:
    """Plays the parallel form; agents that are asked say their prompt in capital letters."""

    def __init__(self, **kwargs: Any) -> None:
        self.env = ew.make(TEAM, **kwargs)
        self.seen, self.infos = self.env.reset(seed=1)
        self.rewards: dict[str, float] = {}

    @property
    def asked(self) -> dict[str, str]:
        """The prompts of those who are asked."""
        return {
            agent: seen["prompt"]
            for agent, seen in self.seen.items()
            if agent != "root" and self.infos[agent]["active"]
        }

    def step(self, actions: dict[str, str]) -> None:
        """Play a round."""
        self.seen, self.rewards, self.ends, _, self.infos = self.env.step(actions)

    def root(self, code: str) -> None:
        """Let root act."""
        self.step({"root": code})

    def answer(self) -> None:
        """Let all that are asked answer."""
        self.step({agent: prompt.upper() for agent, prompt in self.asked.items()})


@pytest.fixture
def team(request: pytest.FixtureRequest) -> Any:
    played = Team(**getattr(request, "param", {}))
    yield played
    played.env.close()


def test_a_batch_is_asked_of_several_agents_at_once(team: Team):
    assert [agent for agent, info in team.infos.items() if info["active"]] == ["root"]
    team.root(BATCH)
    assert team.asked == {"sub_0": "a", "sub_1": "b", "sub_2": "c"}
    assert team.infos["root"]["stream"].agents() == ("sub_0", "sub_1", "sub_2")
    assert team.env.agents
    team.answer()
    assert team.infos["root"]["final_answer"] == "A|B|C"
    assert set(team.rewards.values()) == {1.0}
    assert team.env.agents == []


def test_prompts_that_take_the_bytes_of_an_episode_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.envs.code.program_journal.MAX_CALL_BYTES", 2000)
    team = Team()
    team.root(
        "x = llm_query('a' * 1000)\ntry: llm_query('b' * 1000)\nexcept ToolError as error: FINAL(str(error))"
    )
    assert team.asked == {"sub_0": "a" * 1000}
    team.answer()
    assert "bytes of arguments and answers" in team.infos["root"]["final_answer"]
    team.env.close()


@pytest.mark.parametrize("team", [{"subs": 2}], indirect=True)
def test_where_there_are_more_prompts_the_next_are_asked_when_all_have_answered(team: Team):
    team.root(BATCH)
    assert team.asked == {"sub_0": "a", "sub_1": "b"}
    team.answer()
    assert team.asked == {"sub_0": "c"}
    team.answer()
    assert team.infos["root"]["final_answer"] == "A|B|C"


def test_calls_of_several_threads_are_asked_together(team: Team):
    team.root(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool:\n    found = list(pool.map(llm_query, 'xyz'))\nfound"
    )
    asked = 0
    while team.asked:
        asked += len(team.asked)
        team.answer()
    assert asked == 3
    assert team.seen["root"]["stdout"] == "['X', 'Y', 'Z']\n"


def test_calls_one_after_the_other_are_asked_so(team: Team):
    team.root("x = llm_query('a')\ny = rlm_query(x + 'b')\ny")
    assert team.asked == {"sub_0": "a"}
    team.answer()
    assert team.asked == {"sub_0": "Ab"}
    team.answer()
    assert team.seen["root"]["stdout"] == "'AB'\n"
    assert team.seen["root"]["iteration"].tolist() == [1]


def test_a_program_without_prompts_does_not_pause(team: Team):
    team.root("llm_query_batched([]), 2")
    assert team.seen["root"]["stdout"] == "([], 2)\n"
    team.root("llm_query_batched('text')")
    assert "ToolError" in team.seen["root"]["exception"]
    team.root("llm_query('x' * ((1 << 20) + 1))")
    assert "is too long" in team.seen["root"]["exception"]


@pytest.mark.parametrize("api", ["aec", "parallel"])
@pytest.mark.parametrize(
    "make", [pettingzoo.make, lambda api, name, **kwargs: ew.make(name, api=api, **kwargs)]
)
def test_the_id_of_the_repl_is_this_game_for_pettingzoo(make: Any, api: str):
    env = make(api, REPL, subcalls="agents", subs=1)
    env.reset(seed=0)
    assert env.agents == ["root", "sub_0"]
    env.close()


def test_one_after_the_other_in_the_aec_form():
    env = ew.make(TEAM, api="aec")
    env.reset(seed=1)
    env.step(BATCH)
    asked: list[tuple[str, str]] = []
    for agent in env.agent_iter():
        observation, _, terminated, _, info = env.last()
        if terminated:
            env.step(None)
            continue
        assert info["active"]
        asked.append((agent, observation["prompt"]))
        env.step(observation["prompt"].upper())
    assert asked == [("sub_0", "a"), ("sub_1", "b"), ("sub_2", "c")]
    env.close()


def test_prompts_and_answers_are_for_those_they_concern(team: Team):
    team.root(BATCH)
    for agent, prompt in team.asked.items():
        messages = ew.messages_of(team.infos[agent])
        assert [message["content"] for message in messages] == [prompt]
    team.answer()
    kinds = {event.kind for event in team.infos["sub_0"]["stream"].events}
    assert not kinds & {EventKind.TOOL_CALL, EventKind.TOOL_RESULT, EventKind.MESSAGE}
    assert EventKind.TOOL_RESULT in {event.kind for event in team.infos["root"]["stream"].events}


@pytest.mark.parametrize("team", [{"rewards": "roles"}], indirect=True)
def test_with_roles_only_agents_that_answered_share_the_outcome(team: Team):
    team.root("1/0")
    assert team.rewards == {"root": -0.05, "sub_0": 0.0, "sub_1": 0.0, "sub_2": 0.0, "sub_3": 0.0}
    team.root("llm_query_batched(['a', 'b'])")
    team.answer()
    team.root("FINAL(1)")
    assert team.rewards == {"root": 1.0, "sub_0": 1.0, "sub_1": 1.0, "sub_2": 0.0, "sub_3": 0.0}


@pytest.mark.parametrize("team", [{"max_iterations": 2}], indirect=True)
def test_without_an_answer_all_fail(team: Team):
    team.root("llm_query('a')")
    team.answer()
    team.root("1")
    assert set(team.rewards.values()) == {-0.1}
    assert set(team.ends.values()) == {True}
    with pytest.raises(ResetNeeded):
        team.root("1")


def test_copies_and_pickles_go_on_in_the_middle_of_a_program(team: Team):
    team.root("x = 'kept'")
    team.root("y = llm_query('first')\n" + BATCH.replace("'|'", "(x + y)"))
    team.answer()
    for copied in (copy.deepcopy(team.env), pickle.loads(pickle.dumps(team.env))):
        *_, infos = copied.step({agent: prompt.upper() for agent, prompt in team.asked.items()})
        assert infos["root"]["final_answer"] == "AkeptFIRSTBkeptFIRSTC"
        copied.close()
    team.answer()
    assert team.infos["root"]["final_answer"] == "AkeptFIRSTBkeptFIRSTC"


def test_a_replayed_program_with_other_sub_calls_gets_an_error(team: Team):
    team.root("import time\nx = 1\ny = llm_query(str(time.time_ns()))\nx = 2")
    team.answer()
    copied = pickle.loads(pickle.dumps(team.env))
    seen, *_ = copied.step({"root": "x, 'y' in globals()"})
    assert seen["root"]["stdout"] == "(1, False)\n"
    copied.step({"root": "z = llm_query('it goes on')"})
    seen, *_ = copied.step({"sub_0": "yes"})
    assert seen["root"]["locals_snapshot"] == {"z": "'yes'"}
    copied.close()


@pytest.mark.parametrize("otherwise", ["'end'", "llm_query_batched(['a', 'b'])"])
def test_a_copy_whose_program_does_otherwise_says_so(team: Team, otherwise: str):
    team.root(f"import os\nllm_query('a') if os.getpid() == {worker_of(team)} else {otherwise}")
    copied = copy.deepcopy(team.env)
    with pytest.raises(ResetNeeded, match="behaves differently when replayed"):
        copied.step({"sub_0": "A"})
    copied.close()
    team.answer()
    assert team.seen["root"]["stdout"] == "'A'\n"


def test_a_copy_answers_what_was_asked_in_the_order_it_was_asked_in(team: Team):
    """Threads of the copied program ask all at once, and in another order."""
    pauses = f"0.3 * (2 - n) * (os.getpid() != {worker_of(team)})"
    team.root(
        "import os, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        f"def ask(n): time.sleep({pauses}); return llm_query(str(n))\n"
        "with ThreadPoolExecutor(3) as pool: found = list(pool.map(ask, range(3)))\nfound"
    )
    copied = copy.copy(team)
    copied.env = copy.deepcopy(team.env)
    for played in (copied, team):
        while played.asked:
            played.step({agent: prompt * 2 for agent, prompt in played.asked.items()})
        assert played.seen["root"]["stdout"] == "['00', '11', '22']\n"
    copied.env.close()


def worker_of(team: Team) -> int:
    """The process that the programs of a team run in."""
    return team.env.unwrapped._env._session.process.pid


@pytest.mark.parametrize("team", [{"step_timeout": 0.05}], indirect=True)
def test_the_time_that_agents_take_is_not_the_programs(team: Team):
    team.root("x = llm_query('a')\nx")
    time.sleep(1.2)  # more than all that a step of this timeout may wait for
    team.answer()
    assert team.seen["root"]["stdout"] == "'A'\n"


def test_a_reset_in_the_middle_of_a_program_begins_anew(team: Team):
    team.root(BATCH)
    team.seen, team.infos = team.env.reset()
    assert team.asked == {}
    team.root("'answers' in globals()")
    assert team.seen["root"]["stdout"] == "False\n"


def test_a_program_that_dies_after_an_answer_is_an_error(team: Team):
    team.root("import os\nllm_query('a')\nos._exit(3)")
    team.answer()
    assert "all variables are gone" in team.seen["root"]["exception"]
    team.root("llm_query('b')")
    assert team.asked == {"sub_0": "b"}


def test_wrong_actions_change_nothing(team: Team):
    team.root(BATCH)
    with pytest.raises(InvalidAction, match="sub_1 must act"):
        team.step({"sub_0": "x"})
    with pytest.raises(InvalidAction, match="action 3 of sub_1"):
        team.step({"sub_0": "x", "sub_1": 3, "sub_2": "x"})
    with pytest.raises(InvalidAction, match=r"action .* of sub_1"):
        team.step({"sub_0": "x", "sub_1": "\ud800", "sub_2": "x"})
    team.answer()
    assert team.infos["root"]["final_answer"] == "A|B|C"


@pytest.mark.parametrize("program", [None, 5, "\ud800", "x" * 50_000_000], ids=["None", "5", "half", "50 MB"])
def test_an_invalid_program_of_root_is_refused_and_the_game_goes_on(team: Team, program: Any):
    with pytest.raises(InvalidAction, match="root"):
        team.root(program)
    team.root("1\x00")
    assert "null bytes" in team.seen["root"]["exception"]
    team.root("FINAL(1)")
    assert team.infos["root"]["final_answer"] == "1"


def test_replies_are_read_by_role(team: Team):
    assert ew.parse_action(team.env, "```repl\nx = 1\n```", agent="root").strip() == "x = 1"
    assert ew.parse_action(team.env, "as it is", agent="sub_1") == "as it is"
    with pytest.raises(InvalidArgument, match="'sub_9' is no agent"):
        ew.parse_action(team.env, "x", agent="sub_9")


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"subs": 0}, "subs=0 is no number of agents; give an int from 1 to 256"),
        ({"rewards": "mine"}, "rewards='mine' is unknown; there are 'shared' and 'roles'"),
        ({"subcalls": "models"}, "agents answer here; models do in envweave/REPL-v0"),
        ({"max_cycles": 0}, "max_cycles=0 is not a number of cycles"),
        ({"compat": "x"}, "compat='x' is unknown"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(kwargs: dict[str, Any], sentence: str):
    with pytest.raises(InvalidArgument, match=f"^{TEAM}: .*{sentence}"):
        ew.make(TEAM, **kwargs)
