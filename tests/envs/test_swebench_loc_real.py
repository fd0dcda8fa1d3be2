"""Which file must change, over 300 real issues: trivial solvers stay near chance, masked issues name nothing.

Chance is 0.25. Of 300 rows a fraction of 0.25 has a standard deviation of 0.025; every row is asked with two
seeds. A single solver is above the bounds on purpose: it knows which files are ever an answer, and no set of
wrong options hides that the right file shares more words with its issue than the answers of other issues do.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from absent import needs_data
from swebench_rows import real_rows

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.envs.swebench.baseline_solvers import SOLVERS, accuracies
from envweave_gym.envs.swebench.file_mentions import NAMED, leak_of
from envweave_gym.envs.swebench.localisation import SWEBenchLocEnv

KNOWS_THE_ANSWERS = "ever an answer, then words"
BOUNDS = {"file": (0.45, 0.40), "rows": (0.48, 0.40)}
"""The highest accuracy over all rows, and over those whose issue does not name the file."""


def real_env(candidates: str | None = None, **kwargs: Any) -> SWEBenchLocEnv:
    real_rows()
    if candidates is None:
        needs_data("swebench_lite_mcq.jsonl")
    return SWEBenchLocEnv(candidates=candidates, **kwargs)


@cache
def measured(kind: str) -> Any:
    return accuracies(real_env("rows" if kind == "rows" else None), range(2))


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_neither_a_trivial_solver_nor_its_inverse_does_well(kind: str, solver: str) -> None:
    accuracy = measured(kind)[solver]
    everywhere, without_leak = (0.72, 0.52) if solver == KNOWS_THE_ANSWERS else BOUNDS[kind]
    assert max(accuracy.direct, accuracy.inverse) <= everywhere
    assert max(accuracy.direct_no_leak, accuracy.inverse_no_leak) <= without_leak


def test_masked_issues_name_no_right_file() -> None:
    env = real_env(mask_paths=True)
    for index, task in enumerate(env.tasks):
        _, info = env.reset(seed=0, options={"index": index})
        assert info["leak"] in ("stem", "none")
        assert leak_of(task.gold_files[0], env.issue) not in NAMED
        assert task.gold_files[0] not in env.issue


def test_leaks_are_those_that_were_counted_by_hand() -> None:
    env = real_env()
    leaks = Counter(env.reset(seed=0, options={"index": index})[1]["leak"] for index in range(len(env.tasks)))
    assert leaks == {"path": 60, "dotted": 24, "name": 8, "stem": 54, "none": 154}


@pytest.mark.parametrize("candidates", ["rows", None])
def test_every_real_issue_has_its_options_and_fits_the_space(candidates: str | None) -> None:
    env = real_env(candidates)
    places: Counter[int] = Counter()
    fewer = 0
    for index, task in enumerate(env.tasks):
        prompt, _ = env.reset(seed=7, options={"index": index})
        options = env.question.options
        assert env.observation_space.contains(prompt)
        assert len(set(options)) == len(options)
        assert options[env.question.right] == task.gold_files[0]
        fewer += len(options) < 4
        places[env.question.right] += 1
    assert fewer <= (3 if candidates else 0)  # three issues of flask, whose rows know two other files
    assert min(places.values()) > 50


def test_candidates_of_the_test_split_are_none_of_the_dev_split() -> None:
    path = needs_data("swebench_lite_mcq.jsonl")
    assert real_env(split="dev").episode_state()["candidates"] == "rows"
    with pytest.raises(InvalidArgument, match="give the candidates of this data set"):
        real_env(str(path), split="dev")
