"""IDs of every kind keep the rules of the conformance kit in Ray actors, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conforming import FEW, WHOLE, elsewhere, every_check, kept_open, run
from ray_clusters import cluster

import envweave_gym as ew
from envweave_gym.testing import Subject
from envweave_gym.testing.runs import Check

__all__ = ["cluster"]
COUNTER = "envweave/Counter-v0"
SUBJECTS = elsewhere(FEW, "forkserver", [COUNTER], backend="ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module", autouse=True)
def actor(cluster: Any) -> Iterator[None]:
    """One actor serves all checks."""
    with kept_open(SUBJECTS):
        yield


@every_check(SUBJECTS, WHOLE)
def test_registered_id_conforms_in_an_actor(subject: Subject, check: Check) -> None:
    run(check, subject)


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning", "ignore:.*use of fork.*:DeprecationWarning")
def test_a_vector_in_forked_processes_is_refused_in_one_sentence() -> None:
    reported = (
        r"row \d cannot be made .*: Ray does not work in a process that was forked from one that uses it"
    )
    forked = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}}
    with pytest.raises(ew.NotAvailable, match=reported):
        ew.make(COUNTER, num_envs=2, backend="ray", **forked)
