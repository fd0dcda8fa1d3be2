"""Prompts as tokens: what is sampled is never tokenised again, and rows break only where the history changes."""

import pytest
from absent import needs_module
from fake_tinker import END, Characters

from envweave_gym.chat import ChatHistory
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.training.tinker.prompts import Conversation, Prompts

needs_module("jinja2")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def spoken(conversation: Conversation, reply: list[int]) -> str:
    text = conversation.answer(reply, [-1.0] * len(reply))
    conversation.history.answer(text)
    return text


def talking(prompts: Prompts) -> Conversation:
    return Conversation(prompts, ChatHistory())


def test_a_conversation_of_two_turns_is_one_row_whose_replies_are_the_sampled_tokens():
    tokenizer = Characters()
    talk = talking(Prompts(tokenizer))
    talk.history.append([user("one?")], anew=True)
    first = talk.prompt()
    sampled = [*map(ord, "eins"), END]
    assert spoken(talk, sampled) == "eins"
    talk.history.append([user("two?")])
    second = talk.prompt()
    assert second[: len(first) + 5] == [*first, *sampled]
    expected = tokenizer.apply_chat_template(
        [user("one?"), {"role": "assistant", "content": "eins"}, user("two?")], False, True
    )
    assert tokenizer.decode(second, False) == expected
    assert not any("eins" in text for text in tokenizer.encoded)
    (row,) = talk.rows
    assert row.spans == [(len(first), len(first) + 5)]
    assert row.logprobs[len(first) : len(first) + 5] == [-1.0] * 5
    assert row.logprobs[: len(first)] == [0.0] * len(first)


def test_a_reply_that_was_cut_off_is_closed_by_the_template_in_the_same_row():
    talk = talking(Prompts(Characters()))
    talk.history.append([user("one?")])
    first = talk.prompt()
    spoken(talk, [*map(ord, "ei")])
    talk.history.append([user("two?")])
    assert talk.prompt()[len(first) :][:3] == [ord("e"), ord("i"), END]
    assert len(talk.rows) == 1


def test_a_template_that_drops_thoughts_begins_a_row_for_each_turn():
    tokenizer = Characters(strips_thoughts=True)
    talk = talking(Prompts(tokenizer))
    talk.history.append([user("one?")])
    talk.prompt()
    spoken(talk, [*map(ord, "<think>hm</think>1"), END])
    talk.history.append([user("two?")])
    second = talk.prompt()
    spoken(talk, [ord("2"), END])
    assert [len(row.spans) for row in talk.rows] == [1, 1]
    assert "hm" not in tokenizer.decode(second, False)
    assert talk.rows[1].spans == [(len(second), len(second) + 2)]


def test_a_history_that_begins_anew_is_another_row():
    talk = talking(Prompts(Characters()))
    talk.history.append([user("long story")])
    talk.prompt()
    spoken(talk, [ord("a"), END])
    talk.history.append([user("summary")], anew=True)
    talk.prompt()
    assert [message["content"] for message in talk.history.messages] == ["summary"]
    assert len(talk.rows) == 2


def test_plain_prompts_join_the_contents_and_a_stop_text_ends_a_line():
    tokenizer = Characters()
    prompts = Prompts(tokenizer, "plain", "\n")
    assert prompts.stop_tokens == sorted([ord("\n"), END])
    talk = talking(prompts)
    talk.history.append([user("Q: 1+1=\nA:")])
    first = talk.prompt()
    assert tokenizer.decode(first, False) == "Q: 1+1=\nA:"
    assert spoken(talk, [*map(ord, " 2\n")]) == " 2"
    talk.history.append([user("Q: 2+2=\nA:")])
    assert tokenizer.decode(talk.prompt(), False) == "Q: 1+1=\nA: 2\nQ: 2+2=\nA:"
    assert len(talk.rows) == 1


def test_what_the_tokenizer_cannot_do_is_refused_with_the_option_to_give():
    tokenizer = Characters()
    with pytest.raises(InvalidArgument, match="--prompt 'verse' is unknown; give chat or plain"):
        Prompts(tokenizer, "verse")
    with pytest.raises(InvalidArgument, match="--stop 'END' is 3 tokens"):
        Prompts(tokenizer, "plain", "END")
    tokenizer.chat_template = ""
    with pytest.raises(InvalidArgument, match="no chat template; give --prompt plain"):
        Prompts(tokenizer)


def test_tokens_of_long_texts_take_four_bytes_each_in_the_cache():
    prompts = Prompts(Characters())
    assert prompts.encode("a" * 1000) == [97] * 1000
    cached = prompts._encode("a" * 1000)
    assert cached.itemsize * len(cached) == 4000
