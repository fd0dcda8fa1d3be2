"""CodeFix: programs that can be understood, rewards that are executed, and a vector form that equals it."""

from __future__ import annotations

import ast
import builtins
import hashlib
import keyword
import random
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envweave_gym
from envweave_gym.envs.codefix import codefix
from envweave_gym.envs.codefix.codefix import (
    MAX_SOURCE,
    VOCABULARY,
    WIDTHS,
    CodeFixEnv,
    CodeFixVectorEnv,
    question,
    read_operator,
    tokenize,
)
from envweave_gym.envs.codefix.generator import (
    ARITHMETIC,
    COMPARISON,
    MEANINGS,
    OPERATORS,
    TEMPLATES,
    Program,
    execute,
    generate,
    outputs,
    passing,
)
from envweave_gym.episode.stream import stream_of

ID = "envweave/CodeFix-v0"
VARIANTS = [(m.template, m.operator, k) for m in MEANINGS for k in m.constants]


@pytest.fixture(scope="module")
def many() -> list[Program]:
    """The programs of the first 20,000 seeds."""
    return [generate(seed) for seed in range(20_000)]


def test_twenty_thousand_seeds_give_thousands_of_distinct_programs(many: list[Program]):
    assert len({program.source() for program in many}) >= 15_000


def test_there_are_millions_of_combinations():
    total = sum(len(m.constants) * len(m.function_names) * len(m.docstrings) * len(m.names) for m in MEANINGS)
    assert total >= 1_000_000
    assert len(TEMPLATES) >= 15
    assert {m.operator for m in MEANINGS} == set(OPERATORS)


def test_programs_of_known_seeds_do_not_change(many: list[Program]):
    """A policy trained on this version must meet the same programs again: a change needs a new ID version."""
    assert generate(0).source() == (
        "def find_whole_part(x):\n"
        '    """Give back x divided by 8 and rounded down."""\n'
        "    return x % 8  # fix: %\n"
    )
    learned = " ".join([*VOCABULARY, *(program.source() for program in many[:1000])])
    assert hashlib.sha256(learned.encode()).hexdigest()[:16] == "fec044a46aaad641"


def test_the_reference_passes_and_the_program_as_shown_fails_when_executed(many: list[Program]):
    for program in many[:4000]:
        assert program.passes(program.operator)
        shown = execute(program.source(), program.function_name, program.cases())
        assert shown != program.expected()


def test_the_broken_operator_is_plausible(many: list[Program]):
    for program in many[:4000]:
        family = ARITHMETIC if program.operator in ARITHMETIC else COMPARISON
        assert program.broken in family
        assert program.source().count(f"  # fix: {program.broken}\n") == 1


def test_returned_values_belong_to_the_caller():
    untouched = {}
    for seed in range(300):
        program = generate(seed)
        untouched[seed] = repr((program.expected(), program.cases()))
        for given in (*program.expected(), *(argument for case in program.cases() for argument in case)):
            if isinstance(given, list):
                given.clear()
    for seed, before in untouched.items():
        program = generate(seed)
        assert repr((program.expected(), program.cases())) == before
        assert program.passes(program.operator)
        assert isinstance(program.expected(), tuple)
        assert isinstance(program.results(program.operator), tuple)


def test_no_operator_is_right_too_often(many: list[Program]):
    right = Counter(
        operator
        for p in many
        for operator, passes in zip(OPERATORS, passing(p.template, p.operator, p.constant), strict=True)
        if passes
    )
    asked = Counter(program.operator for program in many)
    for counts in (right, asked):
        assert set(counts) == set(OPERATORS)
        assert max(counts.values()) < 0.3 * len(many)
        assert min(counts.values()) > 0.04 * len(many)


def test_always_answering_with_another_operator_of_the_shown_family_is_no_good_policy(many: list[Program]):
    shown = Counter((program.broken, program.operator) for program in many)
    best = Counter[str]()
    for (broken, _), count in shown.items():
        best[broken] = max(best[broken], count)
    assert sum(best.values()) < 0.35 * len(many)


def test_name_and_docstring_decide_the_operator(many: list[Program]):
    asked: dict[tuple[str, str, str], set[str]] = {}
    for meaning in MEANINGS:
        for docstring in meaning.docstrings:
            for name in meaning.function_names:
                asked.setdefault((meaning.template, docstring, name), set()).add(meaning.operator)
    assert all(len(operators) == 1 for operators in asked.values())
    by_docstring: dict[tuple[str, str], str] = {}
    for program in many:
        said = by_docstring.setdefault((program.template, program.docstring), program.operator)
        assert said == program.operator


def test_every_meaning_has_several_wordings():
    for meaning in MEANINGS:
        assert len(set(meaning.docstrings)) == len(meaning.docstrings) >= 4
        assert len(set(meaning.function_names)) == len(meaning.function_names) >= 3


def _same_on(template: str, operator: str, other: str, constant: int, cases: list[tuple]) -> bool:
    names = TEMPLATES[template].names()[0]
    program = Program(template, operator, other, constant, "f", "", names)
    reference = execute(program.source(operator), "f", tuple(cases))
    return execute(program.source(other), "f", tuple(cases)) == reference


_RANDOM = random.Random(7)
_NUMBERS = [_RANDOM.randint(-30, 30) for _ in range(60)]
_POSITIVE = [_RANDOM.randint(1, 30) for _ in range(60)]
_WORDS = ["abcdefghijklmnopqrstuvwxyz"[: _RANDOM.randint(1, 25)] for _ in range(60)]
_MORE_CASES = {
    "number": [(n,) for n in _NUMBERS],
    "pair": list(zip(_NUMBERS, reversed(_POSITIVE), strict=True)),
    "list": [(_NUMBERS[i : i + 4],) for i in range(0, 56, 2)],
    "two lists": [(_NUMBERS[i : i + 4], _POSITIVE[i : i + 4]) for i in range(0, 56, 2)],
    "steps": [(_POSITIVE[i : i + 3],) for i in range(0, 56, 2)],
    "shrinking": [(_POSITIVE[i : i + 3],) for i in range(0, 56, 2)],
    "places": [(list(range(n)),) for n in range(30)],
    "string": [(word,) for word in _WORDS],
    "string list": [(_WORDS[i : i + 4],) for i in range(0, 56, 2)],
}


def test_operators_that_pass_the_tests_do_the_same_elsewhere():
    """The tests are strong: whatever passes them equals the reference on inputs the tests do not have."""
    others = set()
    for template, operator, constant in VARIANTS:
        more = _MORE_CASES[TEMPLATES[template].cases]
        for other, passes in zip(OPERATORS, passing(template, operator, constant), strict=True):
            if passes and other != operator:
                others.add((template, operator, other))
                assert _same_on(template, operator, other, constant, more)
    assert {("pick", ">", ">="), ("limit", "<", "<="), ("multiple", "==", "<=")} <= others


def test_programs_are_clean_python(many: list[Program]):
    reserved = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)} - {"_"}
    for meaning in MEANINGS:
        assert not reserved & set(meaning.function_names)
        for names in meaning.names:
            assert len(set(names.values())) == len(names)
            assert not reserved & set(names.values())
            assert "result" not in names.values()
    for program in many[:2000]:
        function = ast.parse(program.source()).body[0]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == program.function_name
        assert function.name not in program.names.values()
        assert len(program.source()) <= MAX_SOURCE


def test_executing_does_not_depend_on_names_and_wording(many: list[Program]):
    for program in many[:300]:
        for operator in OPERATORS:
            assert program.results(operator) == outputs(program.template, operator, program.constant)


def test_every_program_is_tokenized_without_loss(many: list[Program]):
    assert len(set(VOCABULARY)) == len(VOCABULARY) < 400
    ends = np.cumsum(WIDTHS)
    for program in many[:3000]:
        tokens = tokenize(program.source())
        assert VOCABULARY.index("<unknown>") not in tokens
        signature, docstring, body = np.split(tokens, ends[:-1])
        assert VOCABULARY[signature[0]] == "def"
        written = [VOCABULARY[token] for token in body if token]
        assert written[written.index("fix") + 1] == program.broken
        said = [VOCABULARY[token] for token in docstring if token]
        plain = program.docstring.format(**program.names, k=program.constant)
        assert said == plain.replace(".", "").split()


def test_the_longest_wordings_fit():
    for meaning in MEANINGS:
        for texts, width in zip(codefix._patterns(meaning), WIDTHS, strict=True):
            assert max(len(codefix._TOKEN.findall(text)) for text in texts) <= width


def test_foreign_text_is_tokenized_too():
    tokens = tokenize("def zebra(n):")
    assert [VOCABULARY[token] for token in tokens[:4]] == ["def", "<unknown>", "n", "<padding>"]


# The single environment


@pytest.mark.parametrize("observation", ["text", "both"])
def test_official_checker_passes_without_a_warning(observation):
    check_env(gym.make(ID, observation=observation).unwrapped)
    check_env(gym.make(ID, observation=observation, render_mode="ansi").unwrapped)


@pytest.mark.parametrize("seed", range(30))
def test_the_reward_is_one_exactly_for_operators_that_pass(seed):
    env = CodeFixEnv()
    program = generate(seed)
    namespace: dict = {}
    exec(program.source(program.operator), namespace)
    expected = [namespace[program.function_name](*case) for case in program.cases()]
    for action, operator in enumerate(OPERATORS):
        env.reset(seed=seed)
        _, reward, terminated, truncated, info = env.step(action)
        fixed: dict = {}
        exec(program.source(operator), fixed)
        try:
            right = [fixed[program.function_name](*case) for case in program.cases()] == expected
        except (ZeroDivisionError, TypeError):
            right = False
        assert (reward, terminated, truncated, info) == (float(right), True, False, {})


def test_the_observation_shows_the_program():
    source = generate(5).source()
    assert CodeFixEnv("text").reset(seed=5)[0] == source
    both, _ = CodeFixEnv("both").reset(seed=5)
    assert both["source"] == source
    assert np.array_equal(both["tokens"], CodeFixEnv().reset(seed=5)[0])
    assert np.array_equal(both["tokens"], tokenize(source))


@pytest.mark.parametrize("observation", ["tokens", "text", "both"])
def test_the_question_travels_as_a_message(observation):
    env = gym.make(ID, observation=observation)
    _, info = env.reset(seed=11)
    assert envweave_gym.messages_of(info) == [
        {"role": "user", "content": question(generate(11).source())},
    ]
    assert generate(11).source() in question(generate(11).source())
    assert envweave_gym.messages_of(env.step(0)[4]) == []


def test_unseeded_resets_follow_from_the_last_seed():
    env, other = gym.make(ID, observation="text"), gym.make(ID, observation="text")
    first = [env.reset(seed=4)[0], *(env.reset()[0] for _ in range(5))]
    assert first == [other.reset(seed=4)[0], *(other.reset()[0] for _ in range(5))]
    assert len(set(first)) == 6


def test_render_and_state_do_not_tell_the_answer():
    env = gym.make(ID, render_mode="ansi")
    env.reset(seed=3)
    program = generate(3)
    assert env.render() == program.source()
    assert envweave_gym.state_of(env) == {
        "episode": 0,
        "step_count": 0,
        "template": program.template,
        "tests": len(program.cases()),
    }
    assert CodeFixEnv().render() is None


@pytest.mark.parametrize("text", ["<=", " `<=` ", "'<='", '"<="', "6"])
def test_parse_action_takes_an_operator_or_its_index(text):
    assert OPERATORS[envweave_gym.parse_action(gym.make(ID), text)] == "<="
    vector = gym.make_vec(ID, num_envs=2)
    assert envweave_gym.parse_action(vector, "6") == 6


@pytest.mark.parametrize("text", ["", "=<", "11", "-1", "the answer is not +", "²", "+ -", "9" * 5000])
def test_parse_action_refuses_junk_in_one_sentence(text):
    with pytest.raises(envweave_gym.InvalidAction, match="names no operator"):
        envweave_gym.parse_action(gym.make(ID), text)
    with pytest.raises(ValueError, match="names no operator"):
        read_operator(text)


def test_unknown_observation_is_refused():
    with pytest.raises(envweave_gym.InvalidArgument, match="'tokens', 'text' and 'both'"):
        gym.make(ID, observation="pixels")


# The vector form


def test_vector_rewards_are_those_of_executing_the_single_program():
    draws = 4096
    env = CodeFixVectorEnv(draws)
    observations, _ = env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, len(OPERATORS), draws)
    _, rewards, terminated, truncated, _ = env.step(actions)
    assert terminated.all()
    assert not truncated.any()
    single = CodeFixEnv()
    for seed, action in enumerate(actions.tolist()):
        observation, _ = single.reset(seed=seed)
        assert np.array_equal(observation, observations[seed])
        _, reward, _, _, _ = single.step(action)
        assert reward == rewards[seed]
    assert 0.05 < rewards.mean() < 0.2


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_rows_equal_single_environments_in_turn(mode):
    native = gym.make_vec(ID, num_envs=6, autoreset_mode=mode)
    turns = gym.make_vec(ID, num_envs=6, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    actions = np.random.default_rng(1)
    seeds = [3, 2**40, 2**63, 0, 7, 2**31 - 1]
    for left, right in zip(native.reset(seed=seeds), turns.reset(seed=seeds), strict=True):
        _same(left, right)
    for _ in range(12):
        action = actions.integers(0, len(OPERATORS), 6)
        for left, right in zip(native.step(action), turns.step(action), strict=True):
            _same(left, right)
        assert native.state() == tuple(envweave_gym.state_of(env) for env in turns.envs)


def _same(left, right):
    if isinstance(left, dict):
        assert stream_of(left) == stream_of(right)
        assert left["seq"].tolist() == right["seq"].tolist()
        return
    assert left.dtype == right.dtype
    assert np.array_equal(left, right)


def test_the_step_that_resets_is_ignored_and_shows_a_new_program():
    env = gym.make_vec(ID, num_envs=3)
    first, infos = env.reset(seed=0)
    assert [envweave_gym.messages_of({"stream": stream}) for stream in infos["stream"]] == [
        [{"role": "user", "content": question(generate(seed).source())}] for seed in range(3)
    ]
    right = np.array([OPERATORS.index(generate(seed).operator) for seed in range(3)])
    shown, rewards, terminated, _, _ = env.step(right)
    assert rewards.tolist() == [1.0, 1.0, 1.0]
    assert np.array_equal(shown, first)
    shown, rewards, terminated, _, infos = env.step(right)
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert not terminated.any()
    assert not np.array_equal(shown, first)
    assert not envweave_gym.trainable(infos).any()


@pytest.mark.parametrize("observation", ["text", "both"])
def test_vectors_with_other_observations_are_single_environments_in_turn(observation):
    with pytest.raises(ValueError, match="vectorization_mode='sync'"):
        CodeFixVectorEnv(2, observation)
    turns = gym.make_vec(ID, num_envs=2, observation=observation)
    observations, _ = turns.reset(seed=1)
    sources = observations if observation == "text" else observations["source"]
    assert tuple(sources) == (generate(1).source(), generate(2).source())


def test_held_out_seeds_are_other_programs(many: list[Program]):
    trained = {program.source() for program in many}
    held_out = [generate(seed).source() for seed in range(10**9, 10**9 + 2000)]
    assert sum(source in trained for source in held_out) < 0.02 * len(held_out)
