"""CodeReview: who sees what, what ends the game, what it pays."""

from __future__ import annotations

import warnings

import numpy as np
import pettingzoo
import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import envweave_gym
from envweave_gym.envs.codefix.codefix import VOCABULARY, question, tokenize
from envweave_gym.envs.codefix.generator import OPERATORS, generate
from envweave_gym.envs.games import code_review
from envweave_gym.envs.games.code_review import (
    ACCEPT,
    ACCEPTANCES,
    AGENTS,
    AUTHOR,
    FEATURES,
    REVIEWER,
    ROUND_COST,
    SHOWN_TESTS,
    accepts,
    named_operator,
)
from envweave_gym.episode.stream import EventKind, stream_of

ID = "envweave/CodeReview-v0"
TEXT_WARNINGS = (
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "Action space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
)


def right(seed: int) -> int:
    return OPERATORS.index(generate(seed).operator)


def wrong(seed: int) -> int:
    return OPERATORS.index(generate(seed).broken)


def started(seed: int = 0, **kwargs):
    env = code_review.raw_env(**kwargs)
    env.reset(seed=seed)
    return env


def features(env, agent: str) -> dict[str, int]:
    return dict(zip(FEATURES, env.observe(agent)["observation"][-len(FEATURES) :].tolist(), strict=True))


# PettingZoo's own checks


@pytest.mark.parametrize("make", [code_review.raw_env, code_review.env])
def test_official_aec_checks_pass_with_text_comments(make, capsys):
    with warnings.catch_warnings():
        for text in TEXT_WARNINGS:
            warnings.filterwarnings("ignore", message=text)
        api_test(make(comments="text"), num_cycles=100)
    seed_test(lambda: make(comments="text"), num_cycles=50)


def test_official_parallel_checks_pass_with_text_comments(capsys):
    parallel_api_test(code_review.parallel_env(comments="text"), num_cycles=100)
    parallel_seed_test(lambda: code_review.parallel_env(comments="text"), num_cycles=50)


# The game


@pytest.mark.parametrize("seed", range(20))
def test_an_accepted_right_fix_earns_both_one(seed):
    env = started(seed)
    env.step(right(seed))
    env.step(ACCEPT)
    assert env.rewards == dict.fromkeys(AGENTS, 1.0)
    assert env.terminations == dict.fromkeys(AGENTS, True)
    assert env.truncations == dict.fromkeys(AGENTS, False)


@pytest.mark.parametrize("seed", range(20))
def test_an_accepted_wrong_fix_earns_nothing(seed):
    env = started(seed)
    env.step(wrong(seed))
    env.step(ACCEPT)
    assert env.rewards == dict.fromkeys(AGENTS, 0.0)
    assert env.terminations == dict.fromkeys(AGENTS, True)


def test_a_program_sent_back_costs_both_and_can_still_be_mended():
    env = started(5)
    returns = dict.fromkeys(AGENTS, 0.0)
    for action in (wrong(5), 1 + right(5), right(5), ACCEPT):
        env.step(action)
        for agent in AGENTS:
            returns[agent] += env.rewards[agent]
    assert returns == dict.fromkeys(AGENTS, 1.0 - ROUND_COST)
    assert all(env.terminations.values())


def test_after_the_last_review_the_game_is_truncated():
    env = started(5, max_rounds=2)
    for _ in range(2):
        assert not any(env.truncations.values())
        env.step(wrong(5))
        env.step(1 + right(5))
    assert env.truncations == dict.fromkeys(AGENTS, True)
    assert env.terminations == dict.fromkeys(AGENTS, False)
    assert env.rewards == dict.fromkeys(AGENTS, -ROUND_COST)


def test_max_cycles_limits_the_actions_of_each_agent():
    env = started(5, max_cycles=1)
    env.step(wrong(5))
    env.step(1)
    assert all(env.truncations.values())
    made = pettingzoo.make("aec", ID, max_cycles=2)
    assert made.unwrapped.max_rounds == 2


def test_agents_take_turns_and_cumulative_rewards_are_kept():
    env = started(1)
    seen = []
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        seen.append((agent, reward, over))
        env.step(None if over else wrong(1) if agent == AUTHOR else 1)
    cost = -ROUND_COST
    assert seen == [
        (AUTHOR, 0.0, False),
        (REVIEWER, 0.0, False),
        (AUTHOR, cost, False),
        (REVIEWER, cost, False),
        (AUTHOR, cost, False),
        (REVIEWER, cost, False),
        (AUTHOR, cost, True),
        (REVIEWER, cost, True),
    ]


# What they see


def test_the_observation_is_the_program_as_it_stands():
    env, program = started(7), generate(7)
    for agent in AGENTS:
        assert np.array_equal(env.observe(agent)["observation"][: -len(FEATURES)], tokenize(program.source()))
        assert env.observation_space(agent).contains(env.observe(agent))
    env.step(2)
    for agent in AGENTS:
        tokens = env.observe(agent)["observation"][: -len(FEATURES)]
        assert np.array_equal(tokens, tokenize(program.source(OPERATORS[2])))
    assert env.observation_space(AUTHOR) == env.observation_space(REVIEWER)
    assert env.observation_space(AUTHOR)["observation"].high[0] == len(VOCABULARY) - 1


def test_the_features_say_whose_turn_it_is_and_what_was_suggested():
    env = started(7)
    start = {"observer": 0, "turn": 0, "reviews": 0, "suggestion": 0, "passed": 0}
    assert features(env, AUTHOR) == start
    env.step(right(7))
    assert features(env, AUTHOR) == start | {"turn": 1}
    assert features(env, REVIEWER) == start | {"observer": 1, "turn": 1, "passed": SHOWN_TESTS}
    env.step(1 + 4)
    assert features(env, AUTHOR) == start | {"reviews": 1, "suggestion": 5}


def test_the_tests_shown_are_some_of_all_and_not_enough_to_be_sure():
    fooled = 0
    for seed in range(300):
        env, program = started(seed), generate(seed)
        env.step(wrong(seed))
        passed = features(env, REVIEWER)["passed"]
        assert 0 <= passed <= SHOWN_TESTS < len(program.cases())
        fooled += passed == SHOWN_TESTS
        env.reset(seed=seed)
        env.step(right(seed))
        assert features(env, REVIEWER)["passed"] == SHOWN_TESTS
    assert 10 < fooled < 150


def test_the_author_never_sees_the_tests():
    env = code_review.env()
    for seed in range(30):
        env.reset(seed=seed)
        reported = {agent: [] for agent in AGENTS}
        for agent in env.agent_iter():
            observation, _, terminated, truncated, info = env.last()
            reported[agent] += [m["content"] for m in envweave_gym.messages_of(info)]
            if agent == AUTHOR:
                assert "expected" not in observation["prompt"]
            env.step(None if terminated or truncated else wrong(seed) if agent == AUTHOR else 1)
        assert not any("expected" in text for text in reported[AUTHOR])
        assert len(reported[REVIEWER]) == 3
        assert all(" gives " in text and "expected " in text for text in reported[REVIEWER])


def test_prompts_are_the_messages_of_the_agents_turn():
    env = code_review.env(comments="text")
    env.reset(seed=12)
    for action in (wrong(12), "Have another look at the docstring.", right(12), "accept"):
        agent = env.agent_selection
        observation, _, _, _, info = env.last()
        assert envweave_gym.messages_of(info)[-1] == {"role": "user", "content": observation["prompt"]}
        assert env.observation_space(agent).contains(observation)
        env.step(action)
    record = [event for event in env.record.events if event.kind is EventKind.MESSAGE]
    assert [event.to for event in record] == [(AUTHOR,), (REVIEWER,), (AUTHOR,), (REVIEWER,)]
    assert record[0].data["content"] == question(generate(12).source())
    assert "Have another look at the docstring." in record[2].data["content"]
    assert generate(12).source(generate(12).broken) in record[2].data["content"]


def test_the_waiting_reviewer_sees_that_it_must_wait():
    env = started(3)
    assert env.observe(REVIEWER)["prompt"] == "Wait for the author."
    env.step(0)
    assert "Answer 'accept', or send it back" in env.observe(REVIEWER)["prompt"]


def test_the_outcome_is_a_metrics_event():
    env = code_review.env()
    env.reset(seed=2)
    for action in (wrong(2), 1, right(2), ACCEPT):
        env.step(action)
    (numbers,) = stream_of(env.infos[AUTHOR]).of_kind(EventKind.METRICS)
    assert numbers.data == {"accepted": 1, "solved": 1, "reviews": 2}


def test_state_and_render_show_the_current_state():
    env = code_review.env(render_mode="ansi")
    env.reset(seed=2)
    assert env.render() == generate(2).source()
    env.step(3)
    assert envweave_gym.state_of(env)["fix"] == OPERATORS[3]
    env.step(1)
    assert env.render() == generate(2).source(OPERATORS[3]) + "reviewer: Use + instead.\n"
    assert envweave_gym.state_of(env)["reviews"] == 1


# Words


@pytest.mark.parametrize("text", [*sorted(ACCEPTANCES), "Accept.", " LGTM! ", "'looks  good'", "`accept`"])
def test_words_that_accept(text):
    assert accepts(text)
    env = started(4, comments="text")
    env.step(right(4))
    env.step(text)
    assert env.rewards == dict.fromkeys(AGENTS, 1.0)


@pytest.mark.parametrize("text", ["", "I accept this is wrong", "not accepted", "looks good but no", "0"])
def test_any_other_text_sends_back(text):
    assert not accepts(text)
    env = started(4, comments="text")
    env.step(right(4))
    env.step(text)
    assert env.agent_selection == AUTHOR
    assert env.rewards == dict.fromkeys(AGENTS, -ROUND_COST)


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("I think it must be `<=`.", "<="),
        ("Use // instead", "//"),
        ("use + or -", None),
        ("re-check the docstring", None),
        ("a <= b", "<="),
        ("", None),
    ],
)
def test_a_text_comment_that_names_one_operator_is_a_feature(text, operator):
    expected = 0 if operator is None else 1 + OPERATORS.index(operator)
    assert named_operator(text) == expected
    env = started(4, comments="text")
    env.step(0)
    env.step(text)
    assert features(env, AUTHOR)["suggestion"] == expected


def test_replies_are_parsed_for_each_agent():
    env = code_review.env()
    env.reset(seed=0)
    parse = envweave_gym.parse_action
    assert parse(env, "`<=`", AUTHOR) == OPERATORS.index("<=")
    assert parse(env, "Looks good!", REVIEWER) == ACCEPT
    assert parse(env, "//", REVIEWER) == 1 + OPERATORS.index("//")
    assert parse(env, "11", REVIEWER) == 11
    assert parse(code_review.env(comments="text"), "why not <?", REVIEWER) == "why not <?"
    for text, agent in (("accept", AUTHOR), ("12", REVIEWER), ("hm", REVIEWER), ("²", REVIEWER)):
        with pytest.raises(envweave_gym.InvalidAction):
            parse(env, text, agent)
    with pytest.raises(envweave_gym.InvalidAction, match="not in Unicode"):
        parse(code_review.env(comments="text"), "x" * 1001, REVIEWER)
    with pytest.raises(envweave_gym.InvalidArgument, match="'author_0', 'reviewer_0'"):
        parse(env, "+", "reviewer_1")


def test_the_longest_comment_fits_into_the_next_prompt():
    env = started(4, comments="text")
    env.step(wrong(4))
    env.step("𝄞" * code_review.MAX_COMMENT)
    assert env.observation_space(AUTHOR).contains(env.observe(AUTHOR))


# Habits


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"comments": "emoji"}, "comments='emoji' is unknown; there are 'discrete' and 'text'"),
        ({"comments": "x" * 1000}, r"comments='x+\.\.\. is unknown"),
        ({"max_rounds": 0}, "max_rounds=0 is not a number of rounds; give an int from 1 to 1000000"),
        ({"max_rounds": True}, "max_rounds=True is not a number of rounds"),
        ({"max_rounds": 2**63}, f"max_rounds={2**63} is not a number of rounds"),
        ({"max_cycles": 1.5}, "max_cycles=1.5 is not a number of cycles; give an int >= 1 or None"),
        ({"max_cycles": 0}, "max_cycles=0 is not a number of cycles"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, complaint):
    with pytest.raises(ValueError, match=f"^(envweave/CodeReview-v0: )?{complaint}"):
        code_review.raw_env(**kwargs)
    with pytest.raises(envweave_gym.InvalidArgument, match=f"^{ID}: {complaint}") as caught:
        pettingzoo.make("aec", ID, **kwargs)
    assert len(str(caught.value)) < 200


def test_the_bounds_themselves_are_taken():
    env = code_review.raw_env(max_rounds=code_review.MAX_ROUNDS, max_cycles=2**63)
    env.reset(seed=0)
    assert env.max_rounds == code_review.MAX_ROUNDS
    assert env.observation_space(AUTHOR).contains(env.observe(AUTHOR))


def test_human_rendering_prints_the_program(capsys):
    env = code_review.env(render_mode="human")
    env.reset(seed=2)
    assert capsys.readouterr().out == generate(2).source() + "\n"
    env.step(3)
    env.step(1)
    assert capsys.readouterr().out.endswith("reviewer: Use + instead.\n\n")
    assert env.render() is None


def test_both_registries_make_it():
    aec = pettingzoo.make("aec", ID, comments="text")
    aec.reset(seed=3)
    parallel = pettingzoo.make("parallel", ID, comments="text")
    observations, infos = parallel.reset(seed=3)
    assert observations[AUTHOR]["prompt"] == aec.observe(AUTHOR)["prompt"] == question(generate(3).source())
    assert (infos[AUTHOR]["active"], infos[REVIEWER]["active"]) == (True, False)
    _, rewards, _, _, infos = parallel.step({AUTHOR: right(3), REVIEWER: "I am not asked"})
    assert (infos[AUTHOR]["active"], infos[REVIEWER]["active"]) == (False, True)
    _, rewards, terminations, _, _ = parallel.step({REVIEWER: "looks good"})
    assert rewards == dict.fromkeys(AGENTS, 1.0)
    assert all(terminations.values())
