"""Synthetic chats in the words of the package's toy tasks, which the tiny base model is trained on.

Choices are answered at random among the legal replies, and moves of poker nearly so: reinforcement learning begins at
chance. Requests to repeat a word and small sums are answered correctly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import envweave_gym
from envweave_gym.envs.tasks.option_letters import lettered

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = (
    "red",
    "blue",
    "green",
    "dog",
    "cat",
    "sun",
    "moon",
    "tree",
    "car",
    "box",
    "fish",
    "bird",
    "yes",
    "no",
)
_LETTERS = "ABCD"
_WEIGHTS = (3, 4, 1, 4, 4, 2)
"""How often each kind of text is drawn: pick, say, options, poker, sum, few sums."""
_BOLDNESS = {"jack": 0.3, "queen": 0.5, "king": 0.7}
"""Probability with which a poker player bets or calls, by its card."""
_MOVES = {False: ("check", "bet"), True: ("fold", "call")}
"""Words for the two moves of Kuhn poker, before a bet and after it."""


class Piece(NamedTuple):
    """A part of a text; a reply is what the model is trained on most."""

    text: str
    is_reply: bool = False


Text = list[Piece]


def chat(*turns: tuple[str, str]) -> Text:
    """Return turns, each a role and a content, as text; the same as the chat template renders."""
    pieces: Text = []
    for role, content in turns:
        if role == "assistant":
            pieces += [Piece(f"{IM_START}{role}\n"), Piece(content + IM_END, True), Piece("\n")]
        else:
            pieces.append(Piece(f"{IM_START}{role}\n{content}{IM_END}\n"))
    return pieces


def corpus(seed: int) -> Callable[[], Text]:
    """Return a function that draws one text after another."""
    chooser = random.Random(seed)
    kinds: list[Callable[[random.Random], Text]] = [_pick, _say, _options, _poker(), _sum, _few_sums]
    return lambda: chooser.choices(kinds, weights=_WEIGHTS)[0](chooser)


def _pick(chooser: random.Random) -> Text:
    return chat(("user", f"pick {chooser.choice(_LETTERS)}"), ("assistant", chooser.choice(_LETTERS)))


def _say(chooser: random.Random) -> Text:
    word = chooser.choice((*_WORDS, *_LETTERS * 4))
    return chat(("user", f"say {word}"), ("assistant", word))


def _options(chooser: random.Random) -> Text:
    options = chooser.sample(_WORDS, len(_LETTERS))
    question = f"Which of these is {chooser.choice(options)}?\n{lettered(options)}"
    return chat(("user", question), ("assistant", chooser.choice(_LETTERS)))


def _sum(chooser: random.Random) -> Text:
    first, second = chooser.randrange(10), chooser.randrange(10)
    return chat(("user", f"{first}+{second}="), ("assistant", str(first + second)))


def _few_sums(chooser: random.Random) -> Text:
    pieces: Text = []
    for _ in range(chooser.randrange(1, 4)):
        first, second = chooser.randrange(10), chooser.randrange(10)
        pieces += [Piece(f"Q: {first}+{second}=\nA:"), Piece(f" {first + second}\n", True)]
    return pieces


def _poker() -> Callable[[random.Random], Text]:
    """Return a function that plays a hand of Kuhn poker at random, and draws what one player read and answered.

    Players are a little bolder with better cards, and one hand of four is followed by the question for the card: a
    model that never looked at it would learn to do so only slowly.
    """
    env = envweave_gym.make("envweave/KuhnPoker-v0", api="parallel")

    def draw(chooser: random.Random) -> Text:
        _, infos = env.reset(seed=chooser.randrange(2**31))
        turns: dict[str, list[tuple[str, str]]] = {agent: [] for agent in env.possible_agents}
        moves, has_bet = 0, False
        while env.agents:
            _read(infos, turns)
            agent = env.possible_agents[moves % 2]
            action = int(chooser.random() < _BOLDNESS[_card_of(turns[agent])])
            turns[agent].append(("assistant", _MOVES[has_bet][action]))
            moves, has_bet = moves + 1, has_bet or action == 1
            *_, infos = env.step({agent: action})
        read = turns[chooser.choice(env.possible_agents)]
        return chat(*(_with_question(read) if chooser.randrange(4) == 0 else read))

    return draw


def _with_question(read: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [read[0], ("user", "Which card do you have?"), ("assistant", _card_of(read))]


def _card_of(read: list[tuple[str, str]]) -> str:
    return next(card for card in _BOLDNESS if read[0][1].endswith(f"{card}."))


def _read(infos: dict[str, object], turns: dict[str, list[tuple[str, str]]]) -> None:
    for agent, read in turns.items():
        messages: Sequence[dict[str, str]] = envweave_gym.messages_of(infos, agent)
        read += [(message["role"], message["content"]) for message in messages]
