"""A token given for sub-calls is seen by the endpoint it is for, and nowhere else."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from repl_world import ASKING, ENDPOINT, ChatEndpoint, chat_endpoint
from servers import RunningServer, running_server

import envweave_gym as ew
from envweave_gym.compat.repl import REPLEnv
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.secret_reference import Secret
from envweave_gym.envs.repl.model_endpoint import Endpoint

TOKEN = "hf_of-the-tests-never-to-be-seen"
ECHO = f"your key {TOKEN} is wrong"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ChatEndpoint]:
    """It repeats the key in what it says of failures, as some do."""
    known = {"fail": (401, ECHO), "odd": (200, ECHO), "which key is that?": f"It is {TOKEN}, I hear."}
    with chat_endpoint(lambda prompt: known.get(prompt) or prompt.upper()) as found:
        yield found


@pytest.fixture(scope="module")
def server(endpoint: ChatEndpoint) -> Iterator[RunningServer]:
    given: dict[str, Any] = {"token": None, "env": {ENDPOINT: endpoint.url}, "allow_host": "0.0.0.0"}
    with running_server(f"repl_world:{ASKING}", **given) as running:
        yield running


@pytest.fixture(params=["here", "there"])
def client(request: pytest.FixtureRequest, endpoint: ChatEndpoint) -> Iterator[REPLEnv]:
    endpoint.keys.clear()
    if request.param == "here":
        made = REPLEnv(hf_url=endpoint.url)
    else:
        made = REPLEnv(request.getfixturevalue("server").url, env_id=ASKING)
    with made as env:
        yield env


def everything_in(thing: Any, seen: set[int] | None = None) -> Iterator[str]:
    """The texts of whatever can be looked into from ``thing`` on, apart from what a secret is kept in."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, Secret | type) or len(seen) > 200_000:
        return
    seen.add(id(thing))
    if isinstance(thing, str | bytes):
        yield str(thing)
    elif isinstance(thing, dict):
        for item in [*thing, *thing.values()]:
            yield from everything_in(item, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for item in thing:
            yield from everything_in(item, seen)
    elif isinstance(thing, msgspec.Struct):
        yield from everything_in(msgspec.structs.asdict(thing), seen)
    elif type(thing).__module__.startswith(("envweave_gym", "gymnasium")):
        yield from everything_in(dict(getattr(thing, "__dict__", {})), seen)


def test_a_token_is_used_and_shows_nowhere(
    client: REPLEnv, endpoint: ChatEndpoint, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    results = [client.reset(context="c", hf_token=TOKEN, llm_model="large")]
    results += [
        client.execute(code) for code in ("llm_query('a')", "llm_query_batched(['fail', 'odd'])", "1/0")
    ]
    assert endpoint.keys == [f"Bearer {TOKEN}"] * 3
    assert results[1].observation.result.stdout == "'A'\n"
    assert "Error: " in results[2].observation.result.stdout
    assert results[2].observation.result.stdout.count("your key … is wrong") == 2
    shown = [repr(results), repr(client.state()), repr(vars(client)), caplog.text]
    shown += [repr(jsonable(result.info["stream"].events)) for result in results]
    shown += [repr(ew.state_of(client._env)), str(pickle.dumps(client._env))]
    shown += [str(pickle.dumps(copy.deepcopy(client._env))), repr(vars(client._env.unwrapped))]
    shown += everything_in(client)
    assert [text for text in shown if TOKEN in text] == []


def test_a_token_shows_nowhere_on_the_server(server: RunningServer, endpoint: ChatEndpoint):
    with REPLEnv(server.url, env_id=ASKING) as env:
        env.reset(hf_token=TOKEN)
        env.execute("llm_query('fail')")
        paths = ("/v1/sessions", "/v1/envs", "/metrics", "/v1/envs/" + ASKING, "/health")
        shown = [server.ask("GET", path).text for path in paths]
        process = Path("/proc", str(server.process.pid))
        shown += [(process / name).read_text() for name in ("cmdline", "environ")]
    shown.append(server.log())
    assert [text for text in shown if TOKEN in text] == []


def test_a_program_cannot_read_the_token_of_its_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with REPLEnv() as env:
        env.reset()
        seen = env.execute("import os\nprint(dict(os.environ))\nopen('/proc/self/environ').read()")
        assert TOKEN not in repr(seen)
    assert os.environ["HF_TOKEN"] == TOKEN


def test_a_reply_that_repeats_the_token_is_shown_without_it(client: REPLEnv):
    client.reset(context="x", hf_token=TOKEN)
    reported = client.execute("llm_query('which key is that?')")
    assert reported.observation.result.stdout == "'It is …, I hear.'\n"
    assert TOKEN not in repr(reported)


def test_a_short_key_is_an_ordinary_word_of_replies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHORT_KEY", "none")
    with chat_endpoint(lambda prompt: "none of them") as found:
        endpoint = Endpoint(base_url=found.url, api_key="env:SHORT_KEY")
        assert endpoint.chat([{"role": "user", "content": "x"}]) == "none of them"


def test_a_token_is_no_option(client: REPLEnv):
    with pytest.raises(InvalidArgument, match="reset takes no option 'hf_token'") as caught:
        client._env.reset(options={"hf_token": TOKEN})
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_a_token_goes_to_another_machine_over_tls_only(server: RunningServer):
    elsewhere = server.url.replace("127.0.0.1", "0.0.0.0")  # as far as the client knows
    with REPLEnv(elsewhere, env_id=ASKING) as env:
        entrust = env._env.unwrapped.entrust
        for call in (env.reset, entrust):
            with pytest.raises(InvalidArgument, match="over https:// only") as caught:
                call(hf_token=TOKEN)
            assert TOKEN not in str(caught.value)


def test_a_token_that_is_none_is_refused_unseen(client: REPLEnv):
    with pytest.raises(InvalidArgument, match="a secret is one line of ASCII characters") as caught:
        client.reset(hf_token=f"{TOKEN}\n")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_a_key_in_place_of_its_name_is_refused_unseen():
    for llm in ({"base_url": "http://x", "api_key": TOKEN}, {"base_url": f"http://u:{TOKEN}@x"}):
        with pytest.raises(InvalidArgument) as caught:
            ew.make("envweave/REPL-v0", llm=llm)
        assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_a_secret_is_in_no_pickle_and_no_repr():
    secret = Secret(TOKEN)
    assert (repr(secret), bool(secret), secret.reveal()) == ("Secret(…)", True, TOKEN)
    assert not pickle.loads(pickle.dumps(secret))
    assert copy.deepcopy(secret) is secret
