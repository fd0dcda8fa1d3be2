"""Environments of a suite that share one process, and the conformance kit over them."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest

import envweave_gym
from envweave_gym.suites.suite_session import one_process
from envweave_gym.testing import (
    NotApplicable,
    check_global_rngs_untouched,
    check_vectors_refuse_misuse,
    subject_of,
)


def pid_of(env: Any) -> int:
    return env.reset(seed=0)[1]["pid"]


def test_environments_share_a_process_until_the_end_of_the_block(toy: dict[str, Any]):
    with one_process():
        envs = [envweave_gym.make("toy/Walk-v0", **toy) for _ in range(2)]
        (pid,) = {pid_of(env) for env in envs}
        for env in envs:
            env.close()
        again = envweave_gym.make("toy/Walk-v0", **toy)  # the process has waited for it
        rows = envweave_gym.make("toy/Walk-v0", num_envs=2, **toy)
        assert pid_of(again) == pid
        assert {*rows.reset(seed=0)[1]["pid"]} == {pid}
        rows.close()
    assert pid_of(again) == pid  # it has an environment left
    process = psutil.Process(pid)
    again.close()
    assert psutil.wait_procs([process], timeout=60)[0] == [process]


def test_a_shared_process_that_dies_is_replaced(toy: dict[str, Any]):
    with one_process():
        env = envweave_gym.make("toy/Walk-v0", **toy)
        pid = pid_of(env)
        os.kill(pid, signal.SIGKILL)
        assert "fault" in env.step(0)[4]
        assert pid_of(env) != pid
        env.close()


def test_environments_have_processes_of_their_own_outside_of_a_block(toy: dict[str, Any]):
    with one_process():
        pass
    envs = [envweave_gym.make("toy/Walk-v0", **toy) for _ in range(2)]
    assert len({pid_of(env) for env in envs}) == 2
    for env in envs:
        env.close()


@pytest.mark.parametrize("check", [check_vectors_refuse_misuse])
def test_checks_of_the_kit_pass_with_one_process(toy: dict[str, Any], check: Any):
    with one_process():
        check(subject_of("toy/Walk-v0", **toy))


def test_generators_of_another_process_are_not_checked(toy: dict[str, Any]):
    with one_process():
        subject = subject_of("toy/Walk-v0", **toy)
        with pytest.raises(NotApplicable, match="generators"):
            check_global_rngs_untouched(subject)


def test_the_unwrapped_environment_is_not_checked_where_rewards_are_converted(toy: dict[str, Any]):
    with one_process():
        plain = subject_of("toy/Walk-v0", **toy)
        summed = subject_of("toy/Walk-v0", reward="sum", **toy)
    assert [form.unwrapped for form in plain.forms()] == [False, True]
    assert [form.unwrapped for form in summed.forms()] == [False]
