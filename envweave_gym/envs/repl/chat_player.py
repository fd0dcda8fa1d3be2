"""Plays an episode of the REPL with a chat model: sends it messages and runs the programs in its replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.core.faults import shown
from envweave_gym.core.thinking import without_thinking
from envweave_gym.envs.repl.model_endpoint import Chat, SubcallFailed
from envweave_gym.envs.repl.printed_answers import printed_answer
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.message import Message
from envweave_gym.episode.stream import EventKind
from envweave_gym.rewards.program_reading import program_in

SYSTEM = (
    "You answer a request by running Python. Put programs into ```repl fences; after each of your replies "
    "you are shown what they printed. Look at `context` before you answer."
)
_TASK = "`context` is a request: do what it asks, and give the answer."
_NO_PROGRAM = "There is no ```repl fence in this reply; write a program, or FINAL(your answer)."
_NO_MORE_STEPS = "There are no more steps. Reply with FINAL(your answer), and nothing else."


def play_with_chat(env: Any, chat: Callable[..., str], prompt: str) -> str:
    """Play an episode whose ``context`` is the prompt, and return its answer.

    ``env`` is an unwrapped REPL; ``chat`` takes messages and returns a reply. When no steps are left, the model gets
    one more message, which requests an answer. Raise :class:`SubcallFailed` if its reply has none.
    """
    emitter: Emitter = env.listen()
    env.reset(options={"context": prompt, "task_prompt": _TASK})
    messages: Chat = [{"role": "system", "content": SYSTEM}, *_messages(emitter)]
    for _ in range(env.task.max_iterations):
        reply = _reply_of(chat, messages)
        messages.append({"role": "assistant", "content": reply})
        if "```" in reply:
            _, _, ended, _, info = env.step(program_in(reply, joined=True))
            if "final_answer" in info:
                return info["final_answer"]
            messages += _messages(emitter)
            if ended:
                break
        elif (answer := printed_answer(reply)) is not None:
            return answer
        else:
            messages.append({"role": "user", "content": _NO_PROGRAM})
    return _last_answer(chat, messages)


def _reply_of(chat: Callable[..., str], messages: Chat) -> str:
    reply: object = chat(messages)
    if not isinstance(reply, str):
        raise SubcallFailed(f"the reply is {shown(reply)}, which is not a string")
    return without_thinking(reply)


def _messages(emitter: Emitter) -> Chat:
    """Return the chat messages that the environment has emitted since the last call."""
    events = drain(emitter)
    return [Message.of(event).as_dict() for event in events if event.kind == EventKind.MESSAGE]


def _last_answer(chat: Callable[..., str], messages: Chat) -> str:
    reply = _reply_of(chat, [*messages, {"role": "user", "content": _NO_MORE_STEPS}])
    answer = printed_answer(reply)
    if answer is None:
        raise SubcallFailed("the model has used up its steps and gave no answer")
    return answer
