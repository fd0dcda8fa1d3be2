"""The messages that a model has not read yet."""

from __future__ import annotations

from envweave_gym.chat import ChatHistory, messages_since


def test_messages_since_a_reply_are_those_after_it_or_all_of_a_history_that_began_anew():
    history = ChatHistory()
    history.tell("one")
    before = history.messages
    history.answer("a")
    assert messages_since(before, history.messages) == []
    history.tell("two")
    assert [one["content"] for one in messages_since(before, history.messages)] == ["two"]
    history.append([{"role": "user", "content": text} for text in ("three", "four", "five")], anew=True)
    assert [one["content"] for one in messages_since(before, history.messages)] == ["three", "four", "five"]
