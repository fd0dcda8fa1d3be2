"""A vector whose process is killed in mid-step: its rows end with it, and what they have started."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
from code_episodes import settles
from sandboxes import needs

HOST = """
import sys, time
import gymnasium as gym
import envweave_gym
if __name__ == "__main__":
    make, options = {
        "ours": (envweave_gym.make, {}),
        "gymnasium": (gym.make_vec, {"vector_kwargs": {"context": "spawn"}}),
    }[sys.argv[1]]
    env = make("envweave/CodeAct-v0", num_envs=2, vectorization_mode="async", step_timeout=60, **options)
    env.reset(seed=0)
    env.step_async(("while True: pass", "import time; time.sleep(60)"))
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["ours", "gymnasium"])
def test_rows_in_mid_step_end_with_the_process_that_steps_them(kind: str, tmp_path: object) -> None:
    needs("landlock")
    program = f"{tmp_path}/host.py"
    with open(program, "w") as file:
        file.write(HOST)
    with subprocess.Popen([sys.executable, program, kind], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "begun\n"
        time.sleep(0.3)
        below = psutil.Process(host.pid).children(recursive=True)
        assert len(below) >= 6
        host.kill()
    assert settles(lambda: not any(_runs(one) for one in below)), below


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
