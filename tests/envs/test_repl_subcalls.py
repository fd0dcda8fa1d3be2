"""Sub-calls: answered by functions, by an endpoint, by episodes of their own; what fails is an answer too."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from repl_world import chat_endpoint, choice, episode

from envweave_gym.core.secret_reference import Secret
from envweave_gym.envs.repl.chat_player import play_with_chat
from envweave_gym.envs.repl.model_endpoint import Endpoint, SubcallFailed
from envweave_gym.envs.repl.subcalls import MAX_PARALLEL

KEY = "sk-of-the-tests"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)


def asked(url: str, secret: Secret | None = None, **more: Any) -> str:
    """The reply of an endpoint."""
    return Endpoint(base_url=url, **more).chat([{"role": "user", "content": "x"}], secret=secret)


def endpoint_at(url: str, **more: Any) -> dict[str, Any]:
    return {"base_url": url, "model": "small", "api_key": "env:TEST_KEY", **more}


# Functions


def test_a_batch_whose_function_never_returns_keeps_no_process_from_ending():
    program = (
        "import time, envweave_gym\n"
        "env = envweave_gym.make('envweave/REPL-v0', llm_query_fn=lambda prompt: time.sleep(300), "
        "step_timeout=0.05)\n"
        "env.reset(seed=0)\n"
        "print(env.step('llm_query_batched([1, 2])')[0]['exception'])\n"
        "env.close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "StepTimeout" in ended.stdout, ended.stderr


def test_a_function_that_exits_is_an_answer_too():
    with episode(llm_query_fn=lambda prompt: sys.exit(f"not {prompt}")) as played:
        assert played.run("llm_query('a')")["stdout"] == "'Error: SystemExit: not a'\n"
        seen = played.run("llm_query_batched(['a', 'b'])")["stdout"]
        assert seen == "['Error: SystemExit: not a', 'Error: SystemExit: not b']\n"


def test_a_function_answers():
    with episode(llm_query_fn=lambda prompt: prompt.upper()) as played:
        assert played.run("llm_query('a')")["stdout"] == "'A'\n"
        assert played.run("rlm_query('b'), rlm_query_batched(['c'])")["stdout"] == "('B', ['C'])\n"


def test_a_function_gets_the_model_if_it_has_such_a_parameter():
    def answer(prompt: str, model: str | None = None) -> str:
        return f"{model}: {prompt}"

    with episode(llm_query_fn=answer, options={"llm_model": "usual"}) as played:
        seen = played.run("llm_query('a'), llm_query('b', model='other')")
        assert seen["stdout"] == "('usual: a', 'other: b')\n"


def test_a_batch_is_answered_at_once_and_in_order():
    together = threading.Barrier(4)

    def answer(prompt: str) -> str:
        together.wait(5)
        time.sleep(0.01 * (4 - int(prompt)))
        return prompt * 2

    with episode(llm_query_fn=answer) as played:
        seen = played.run("llm_query_batched([str(i) for i in range(4)])")
        assert seen["stdout"] == "['00', '11', '22', '33']\n"


def test_a_function_for_batches_answers_single_prompts_too():
    with episode(llm_batch_fn=lambda prompts: [f"{len(prompts)}{p}" for p in prompts]) as played:
        seen = played.run("llm_query('a'), llm_query_batched(['b', 'c']), llm_batch([])")
        assert seen["stdout"] == "('1a', ['2b', '2c'], [])\n"


def test_a_failed_sub_call_returns_an_error_text():
    def fail(prompt: str) -> str:
        raise RuntimeError("no such\nmodel")

    with episode(llm_query_fn=fail) as played:
        seen = played.run("llm_query('a'), llm_query_batched(['b'])")
        error = "Error: RuntimeError: no such model"
        assert seen["stdout"] == f"{(error, [error])}\n"
        assert seen["success"] == 1


@pytest.mark.parametrize("answers", [lambda prompts: ["one"], lambda prompts: 3, lambda prompts: [1, 2]])
def test_a_wrong_batch_is_an_error_for_each_prompt(answers: Any):
    with episode(llm_batch_fn=answers) as played:
        seen = played.run("[a[:6] for a in llm_query_batched(['a', 'b'])]")
        assert seen["stdout"] == "['Error:', 'Error:']\n"


WRONG_CALLS = ["llm_query_batched('text')", "llm_query_batched(['a'] * 1001)", "llm_query()"]


@pytest.mark.parametrize("code", WRONG_CALLS)
def test_a_wrong_call_raises_in_the_program(code: str):
    with episode(llm_query_fn=str) as played:
        assert played.run(code)["success"] == 0
        assert played.run("1")["success"] == 1


def test_a_prompt_that_is_no_text_is_sent_as_json():
    with episode(llm_query_fn=lambda prompt: prompt) as played:
        assert played.run("llm_query({'a': [1]})")["stdout"] == "'{\"a\": [1]}'\n"


def test_questions_without_a_session_fail_with_the_reason():
    with episode() as played:
        assert (
            "Error: no model answers sub-calls: give llm_query_fn=" in played.run("llm_query('a')")["stdout"]
        )


def test_the_time_of_sub_calls_is_not_the_programs():
    def slow(prompt: str) -> str:
        time.sleep(0.8)
        return "late"

    with episode(llm_query_fn=slow, step_timeout=0.5) as played:
        assert played.run("llm_query('a')")["stdout"] == "'late'\n"


def test_nothing_more_of_a_batch_is_asked_when_its_step_is_over():
    asked_so_far, is_over = list[str](), threading.Event()

    def answer(prompt: str) -> str:
        asked_so_far.append(prompt)
        is_over.wait(20)
        return prompt

    with episode(llm_query_fn=answer, step_timeout=0.05) as played:
        seen = played.run("llm_query_batched([str(n) for n in range(100)])")
        assert "StepTimeout" in seen["exception"]
        is_over.set()
        assert no_thread_is_left("sub-call")
    assert len(asked_so_far) == MAX_PARALLEL


def no_thread_is_left(name: str) -> bool:
    """Whether the threads of this name end in time."""
    until = time.monotonic() + 20
    while any(thread.name == name for thread in threading.enumerate()):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


# Endpoints


def test_an_endpoint_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with chat_endpoint(str.upper) as endpoint, episode(llm=endpoint_at(endpoint.url)) as played:
        seen = played.run("llm_query('a', model='large'), llm_query_batched(['b', 'c'])")
        assert seen["stdout"] == "('A', ['B', 'C'])\n"
    first = endpoint.asked[0]
    assert (first["path"], first["model"], first["max_tokens"]) == ("/v1/chat/completions", "large", 2048)
    assert first["messages"] == [{"role": "user", "content": "a"}]
    assert [asked["model"] for asked in endpoint.asked[1:]] == ["small", "small"]
    assert endpoint.keys == [f"Bearer {KEY}"] * 3


def test_a_busy_endpoint_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.envs.repl.model_endpoint._FIRST_PAUSE_S", 0.01)
    replies = [(429, "slow down"), (503, "busy"), (200, choice("at last"))]
    with chat_endpoint(lambda prompt: replies.pop(0)) as endpoint:
        assert asked(endpoint.url) == "at last"
    assert len(endpoint.asked) == 3


def test_an_endpoint_that_stays_busy_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.envs.repl.model_endpoint._FIRST_PAUSE_S", 0.01)
    broken = pytest.raises(SubcallFailed, match="answered with status 500: broken")
    with chat_endpoint(lambda prompt: (500, "broken")) as endpoint, broken:
        asked(endpoint.url, attempts=3)
    assert len(endpoint.asked) == 3


def test_a_refusal_is_not_asked_again_and_shows_no_key():
    refused = pytest.raises(SubcallFailed, match="status 401: wrong key …")
    with chat_endpoint(lambda prompt: (401, f"wrong key {KEY}")) as endpoint, refused as caught:
        asked(endpoint.url, Secret(KEY))
    assert len(endpoint.asked) == 1
    assert KEY not in repr(caught.getrepr())


@pytest.mark.parametrize("body", ["no json", "[]", {"choices": []}, choice(None), choice(3), "[" * 100_000])
def test_a_strange_reply_is_a_failure(body: Any):
    strange = pytest.raises(SubcallFailed, match="sent")
    with chat_endpoint(lambda prompt: (200, body)) as endpoint, strange:
        asked(endpoint.url)


def test_an_endpoint_that_does_not_answer_has_a_deadline():
    waiting = threading.Event()
    try:
        with chat_endpoint(lambda prompt: str(waiting.wait(5))) as endpoint:
            started = time.monotonic()
            with pytest.raises(SubcallFailed, match="does not answer"):
                asked(endpoint.url, deadline=0.2)
            assert time.monotonic() - started < 2
            waiting.set()
    finally:
        waiting.set()


@pytest.mark.parametrize(
    ("begin", "drip"),
    [(b"Content-Length: 100000\r\n\r\n", b" "), (b"", b"X-More: 1\r\n")],
    ids=["body", "head"],
)
def test_an_endpoint_that_drips_has_the_same_deadline(begin: bytes, drip: bytes):
    def serve() -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n" + begin)
            while not over.wait(0.05):
                peer.sendall(drip)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        started = time.monotonic()
        try:
            with pytest.raises(SubcallFailed, match="does not answer"):
                asked(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", deadline=0.3)
            assert time.monotonic() - started < 2
        finally:
            over.set()
            thread.join(5)


def test_a_key_goes_to_no_other_address():
    refused = pytest.raises(SubcallFailed, match="status 307")
    with chat_endpoint(str) as other, chat_endpoint(lambda _: (307, other.url)) as endpoint, refused:
        asked(endpoint.url, Secret(KEY))
    assert other.asked == []


def test_hugging_face_is_asked_with_the_token_of_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", KEY)
    with chat_endpoint(str.upper) as endpoint, episode(hf_url=endpoint.url) as played:
        assert played.run("llm_query('a')")["stdout"] == "'A'\n"
    assert endpoint.keys == [f"Bearer {KEY}"]
    assert endpoint.asked[0]["model"] == "Qwen/Qwen3-Coder-480B-A35B-Instruct"


def test_the_token_of_an_episode_comes_first_and_ends_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "of-the-process")
    with chat_endpoint(str.upper) as endpoint, episode(hf_url=endpoint.url) as played:
        played.env.unwrapped.entrust(hf_token=KEY)
        played.run("llm_query('a')")
        played.env.reset()
        played.run("llm_query('b')")
    assert endpoint.keys == [f"Bearer {KEY}", "Bearer of-the-process"]


def test_the_token_of_an_episode_goes_to_no_endpoint_of_the_operator():
    with chat_endpoint(str.upper) as endpoint, episode(llm={"base_url": endpoint.url}) as played:
        played.env.unwrapped.entrust(hf_token=KEY)
        assert played.run("llm_query('a')")["stdout"] == "'A'\n"
    assert endpoint.keys == [None]


# Episodes inside an episode


def fenced(code: str) -> str:
    return f"Let me see.\n```repl\n{code}\n```"


def test_rlm_query_plays_an_episode_about_its_prompt():
    seen: list[list[dict[str, str]]] = []

    def chat(messages: list[dict[str, str]]) -> str:
        seen.append(messages[:])
        return fenced("n = len(context)\nprint(n)" if len(messages) == 2 else "FINAL(n * 2)")

    with episode(rlm=chat) as played:
        assert played.run("rlm_query('four')")["stdout"] == "'8'\n"
    assert [message["role"] for message in seen[1]] == ["system", "user", "assistant", "user"]
    assert "`context` is a str with 4 characters" in seen[1][1]["content"]
    assert seen[1][3]["content"] == "4"


def test_the_deepest_rlm_query_is_a_plain_query():
    def chat(messages: list[dict[str, str]]) -> str:
        return fenced("FINAL(rlm_query('deeper ' + context))")

    with episode(rlm=chat, llm_query_fn=lambda prompt: f"<{prompt}>") as played:
        assert played.run("rlm_query('a')")["stdout"] == "'<deeper a>'\n"
    with episode(rlm=chat, llm_query_fn=lambda prompt: f"<{prompt}>", rlm_max_depth=3) as played:
        assert played.run("rlm_query('a')")["stdout"] == "'<deeper deeper a>'\n"
    with episode(rlm=chat, llm_query_fn=lambda prompt: f"<{prompt}>", rlm_max_depth=1) as played:
        assert played.run("rlm_query('a')")["stdout"] == "'<a>'\n"


def test_an_episode_inside_ends_with_the_step_that_has_asked_for_it(monkeypatch: pytest.MonkeyPatch):
    calls, is_over, has_ended = list[int](), threading.Event(), threading.Event()

    def chat(messages: list[dict[str, str]]) -> str:
        calls.append(len(messages))
        is_over.wait(20)
        return fenced("1")

    def observed(*args: Any) -> str:
        try:
            return play_with_chat(*args)
        finally:
            has_ended.set()

    monkeypatch.setattr("envweave_gym.envs.repl.repl_env.play_with_chat", observed)
    with episode(rlm=chat, step_timeout=0.05) as played:
        assert "StepTimeout" in played.run("rlm_query('a')")["exception"]
        is_over.set()
        assert has_ended.wait(20)
        assert calls == [2]
        assert played.run("1")["success"] == 1


def test_several_are_played_at_once():
    with episode(rlm=lambda messages: fenced("FINAL(context.upper())")) as played:
        seen = played.run("rlm_query_batched([str(i) * 2 for i in range(10)])")
        assert seen["stdout"] == f"{[str(i) * 2 for i in range(10)]}\n"


def test_an_answer_may_stand_in_a_reply():
    replies = ["Hm.", "FINAL(42)"]
    with episode(rlm=lambda messages: replies.pop(0)) as played:
        assert played.run("rlm_query('a')")["stdout"] == "'42'\n"


def test_a_model_that_has_no_more_steps_is_asked_once_more():
    reported: list[str] = []

    def chat(messages: list[dict[str, str]]) -> str:
        reported.append(messages[-1]["content"])
        return "FINAL(late)" if "no more steps" in reported[-1] else fenced("1")

    with episode(rlm=chat, rlm_max_iterations=2) as played:
        assert played.run("rlm_query('a')")["stdout"] == "'late'\n"
    assert len(reported) == 3


def test_a_model_that_gives_no_answer_is_an_error():
    with episode(rlm=lambda messages: "Hm.", rlm_max_iterations=2) as played:
        assert "Error: the model has used up its steps" in played.run("rlm_query('a')")["stdout"]


def test_a_reply_that_is_no_text_is_an_error():
    with episode(rlm=lambda messages: 5) as played:
        assert played.run("rlm_query('a')")["stdout"] == "'Error: the reply is 5, which is not a string'\n"


def test_an_endpoint_can_play_the_episodes():
    with (
        chat_endpoint(lambda prompt: fenced("FINAL(context[::-1])")) as endpoint,
        episode(llm={"base_url": endpoint.url}, rlm=True) as played,
    ):
        assert played.run("rlm_query('abc')")["stdout"] == "'cba'\n"
