"""Prompts that are too long lose the middle of their longest message, and nothing else."""

from __future__ import annotations

import pytest
from absent import needs_module
from fake_tinker import Characters, FakeClient, group, policies

import envweave_gym
from envweave_gym.chat import ChatGame, ChatMessage
from envweave_gym.training.tinker.episodes import Stopwatch, play
from envweave_gym.training.tinker.prompt_cutting import GAP, cut_to
from envweave_gym.training.tinker.prompts import Prompts

needs_module("jinja2")
BRIEF = {"role": "system", "content": "Answer with a letter."}
LONG = {"role": "user", "content": f"Issue: {'a' * 300}{'z' * 300} A. one B. two"}


def size(prompts: Prompts, messages: list[ChatMessage]) -> int:
    return len(prompts.encode(prompts.render(messages)))


@pytest.mark.parametrize("limit", [100, 101, 250, 600])
@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_beginning_and_end_stay_and_the_prompt_has_the_tokens_that_it_may_have(kind: str, limit: int) -> None:
    prompts = Prompts(Characters(), kind)
    brief, cut = cut_to(prompts, [BRIEF, LONG], limit)
    assert brief == BRIEF
    assert cut["role"] == "user"
    head, _, tail = cut["content"].partition(GAP)
    assert LONG["content"].startswith(head)
    assert LONG["content"].endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert size(prompts, [brief, cut]) == limit
    assert LONG["content"].endswith("B. two")  # the message itself is as it was


def test_a_prompt_that_fits_is_as_it_was() -> None:
    prompts = Prompts(Characters())
    assert cut_to(prompts, [BRIEF, LONG], size(prompts, [BRIEF, LONG])) == [BRIEF, LONG]


def test_a_prompt_of_which_almost_nothing_would_be_left_is_as_it_was() -> None:
    assert cut_to(Prompts(Characters()), [BRIEF, LONG], 70) == [BRIEF, LONG]


class Merging(Characters):
    """Two equal characters are one token, so a text cut and joined again may have other tokens than before."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        tokens: list[int] = []
        for token in super().encode(text, add_special_tokens):
            if tokens and tokens[-1] == token:
                tokens[-1] = token + 0x200000
            else:
                tokens.append(token)
        return tokens

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:  # type: ignore[override]
        single = [part for token in tokens for part in [token % 0x200000] * (1 + (token >= 0x200000))]
        return super().decode(single, skip_special_tokens)


@pytest.mark.parametrize("limit", range(100, 140))
def test_tokens_that_merge_at_the_cut_do_not_make_the_prompt_too_long(limit: int) -> None:
    prompts = Prompts(Merging())
    cut = cut_to(prompts, [BRIEF, LONG], limit)
    assert limit - 4 <= size(prompts, cut) <= limit


def test_only_the_first_prompt_of_an_episode_is_cut() -> None:
    client = FakeClient(lambda prompt, seed, index: "I guess 0.")
    env = envweave_gym.make(
        "envweave/GSM8K-v0", dataset="synthetic", hint_turns=1, system_prompt=f"Begin.{'x' * 2000}End."
    )
    chosen = policies(client, max_prompt_tokens=900)
    messages = play(ChatGame(env), group(1)[0], chosen, Stopwatch())["agent"].messages
    system, problem, _, hint, _ = (message["content"] for message in messages)
    assert system.startswith("Begin.")
    assert GAP in system
    assert system.endswith("End.")
    assert GAP not in problem
    assert GAP not in hint
    assert [len(request.prompt) > 900 for request in client.requests] == [False, True]
    assert len(client.requests[0].prompt) == 900
