"""The typed client of the REPL: the same here and on a server, as its docstring has it."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from repl_world import REPL
from servers import RunningServer, running_server

import envweave_gym.compat.clients
from envweave_gym.compat import repl
from envweave_gym.compat.repl import CodeBlockResult, REPLAction, REPLEnv, REPLObservation, REPLState
from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable, ResetNeeded


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(REPL, token=None) as running:
        yield running


@pytest.fixture(params=["here", "there"])
def client(request: pytest.FixtureRequest) -> Iterator[REPLEnv]:
    url = None if request.param == "here" else request.getfixturevalue("server").url
    with REPLEnv(url) as env:
        yield env


def test_its_constructor_is_the_known_one():
    parameters = inspect.signature(REPLEnv).parameters
    defaults = {name: one.default for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    assert next(iter(defaults)) == "base_url"
    assert defaults["compat"] == "stdout"
    known = {
        "base_url": None,
        "llm_query_fn": None,
        "llm_batch_fn": None,
        "max_output_length": 8192,
        "context_preview_length": 500,
        "reward_on_success": 1.0,
        "reward_on_iteration": 0.0,
        "reward_on_failure": -0.1,
        "reward_on_error": -0.05,
        "connect_timeout_s": 10.0,
        "message_timeout_s": 60.0,
    }
    assert {name: defaults[name] for name in known} == known


def test_an_episode_from_reset_to_answer(client: REPLEnv):
    result = client.reset(context="Hello World", task_prompt="Count chars")
    assert (result.done, result.observation.iteration, result.observation.max_iterations) == (False, 0, 30)
    assert result.observation.context_preview == "Hello World"
    assert result.observation.metadata["final_answer"] is None
    result = client.execute("count = len(context)\ncount")
    assert isinstance(result.observation, REPLObservation)
    ran = result.observation.result
    assert 0 < ran.execution_time < 60
    ran.execution_time = 0.0
    assert ran == CodeBlockResult(stdout="11\n", locals_snapshot={"count": "11"})
    result = client.execute("print(f'FINAL({count})')")
    assert (result.done, result.reward) == (True, 1.0)
    assert (result.observation.done, result.observation.reward) == (True, 1.0)
    assert result.observation.metadata == {
        "task_prompt": "Count chars",
        "final_answer": "11",
        "execution_time": result.observation.result.execution_time,
    }
    with pytest.raises(ResetNeeded):
        client.execute("1")


def test_the_iterations_of_a_reset_count(client: REPLEnv):
    client.reset(max_iterations=2)
    assert client.execute("x = 1").observation.max_iterations == 2
    result = client.execute("y = x\ny")
    assert (result.done, result.reward, result.observation.result.stdout) == (True, -0.1, "1\n")


@pytest.mark.parametrize("answer", ["42", "it's (", "a\nb", "", "…" * 50_000])
def test_an_answer_is_submitted_as_it_is(client: REPLEnv, answer: str):
    client.reset()
    result = client.submit_final_answer(answer)
    assert (result.done, result.reward, client.state().final_answer) == (True, 1.0, answer)


def test_variables_are_printed_and_listed(client: REPLEnv):
    client.reset(context="c")
    assert client.list_variables() == ["context", "answer"]
    client.execute("text = 'a'")
    assert client.get_variable("text").observation.result.stdout == "'a'\n"
    assert client.list_variables() == ["context", "answer", "text"]


def test_the_state_is_known_without_asking(client: REPLEnv, monkeypatch: pytest.MonkeyPatch):
    assert client.state() == REPLState()
    client.reset(context="c" * 100, task_prompt="Do.", episode_id="mine", max_iterations=7)
    client.execute("x = 1")
    monkeypatch.setattr(envweave_gym.compat.clients, "state_of", None)
    state = client.state()
    assert state.total_execution_time > 0
    state.total_execution_time = 0.0
    assert state == REPLState(
        episode_id="mine",
        step_count=1,
        context="c" * 100,
        task_prompt="Do.",
        iteration=1,
        max_iterations=7,
        namespace_keys=["context", "answer", "x"],
    )


def test_an_error_is_an_observation(client: REPLEnv):
    client.reset()
    result = client.execute("1/0")
    assert (result.done, result.reward) == (False, -0.05)
    assert result.observation.result.success is False
    assert str(result.observation.result.exception).endswith("ZeroDivisionError: division by zero")


def test_episodes_have_names_of_their_own(client: REPLEnv):
    names = set[Any]()
    for _ in range(3):
        client.reset()
        names.add(client.state().episode_id)
    assert len(names - {None}) == 3


def test_misuse_is_refused_in_one_sentence(client: REPLEnv):
    with pytest.raises(ResetNeeded, match=f"{REPL}: step\\(\\) was called before reset"):
        client.execute("1")
    with pytest.raises(InvalidArgument, match=f"{REPL}: max_iterations=0 is no number of steps"):
        client.reset(max_iterations=0)
    client.reset()
    with pytest.raises(InvalidAction, match=REPL):
        client.step(REPLAction(code=3))  # pyright: ignore[reportArgumentType]


def test_functions_answer_here():
    with REPLEnv(llm_query_fn=str.upper, llm_batch_fn=lambda prompts: [p * 2 for p in prompts]) as env:
        env.reset(context="...")
        result = env.execute("llm_query('a'), llm_query_batched(['b'])")
        assert result.observation.result.stdout == "('A', ['bb'])\n"


def test_functions_cannot_be_sent_to_a_server():
    with pytest.raises(InvalidArgument, match=r"llm_query_fn=.* cannot be sent to a server"):
        REPLEnv("http://127.0.0.1:9", llm_query_fn=str.upper)


def test_images_and_spaces_are_run_in_containers(monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        envweave_gym.compat.clients, "make", lambda name, **kwargs: made.append((name, kwargs))
    )
    REPLEnv.from_docker_image("repl-env:latest", memory="1g")
    REPLEnv.from_hub("openenv/repl-env")
    REPLEnv.from_hub("openenv/repl-env", tag="v2")
    assert [name for name, _ in made] == [
        f"docker://repl-env:latest#{REPL}",
        f"docker://registry.hf.space/openenv-repl-env:latest#{REPL}",
        f"docker://registry.hf.space/openenv-repl-env:v2#{REPL}",
    ]
    assert made[0][1]["memory"] == "1g"


def test_a_missing_installation_is_refused_with_advice():
    with pytest.raises(
        NotAvailable, match=r"git\+https://huggingface.co/spaces/openenv/repl-env.* install=True"
    ):
        REPLEnv.from_hub("openenv/repl-env", use_docker=False)
    with pytest.raises(InvalidArgument, match=r"/my/project.* has no pyproject.toml"):
        REPLEnv.from_hub("openenv/repl-env", use_docker=False, project_path="/my/project")
    with pytest.raises(InvalidArgument, match="names no Space"):
        REPLEnv.from_hub("repl-env")


def test_the_examples_of_its_docstring_run(server: RunningServer, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    here = envweave_gym.compat.clients.make

    def make(name: str, **kwargs: Any) -> Any:
        opened.append(name)
        name = name.replace("http://localhost:8000", server.url)
        return None if name.startswith("docker://") else here(name, **kwargs)

    monkeypatch.setattr(envweave_gym.compat.clients, "make", make)
    examples = doctest.DocTestParser().get_doctest(str(REPLEnv.__doc__), vars(repl), "REPLEnv", None, 0)
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(examples, out=printed.append)
    failures = [text for text in printed if "Exception" in text]
    assert failures == []
    assert "".join(printed).count("Got:\n    True\n") == 2
    assert len(opened) == 5
