"""Numbers read into spaces without changing them, and what is no array left alone by the converters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from absent import needs_module
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, floating_dtypes, integer_dtypes

from envweave_gym.core.array_conversion import as_array

steady = settings(deadline=None, derandomize=True)

BYTES = Box(0, 255, (2,), np.uint8)
REALS = Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (BYTES, [0, 255], np.array([0, 255], np.uint8)),
        (BYTES, [1.0, 2.0], np.array([1, 2], np.uint8)),
        (BYTES, np.array([True, False]), np.array([1, 0], np.uint8)),
        (REALS, [1, 0.1], np.array([1, 0.1], np.float32)),
        (REALS, [np.inf, -np.inf], np.array([np.inf, -np.inf], np.float32)),
        (MultiDiscrete([3, 4]), (1, 2), np.array([1, 2])),
        (MultiBinary(2), [True, 0], np.array([1, 0], np.int8)),
    ],
)
def test_numbers_become_an_array_of_the_space(space: Any, value: Any, expected: Any) -> None:
    array = as_array(space, value)
    assert array.dtype == space.dtype == expected.dtype
    assert np.array_equal(array, expected)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        *[
            (BYTES, [0, last])
            for last in (256, -1, 0.5, float("nan"), float("inf"), 2**64, 2**200, None, "1", [])
        ],
        *[(BYTES, value) for value in (0, [0], [[0, 1]], [0, 1, 2], None, {}, "01", b"01", [0, [1, 2]])],
        *[(REALS, [0, last]) for last in (1e39, -1e300, "0.5", None, 1j)],
    ],
)
def test_values_that_would_be_changed_are_refused(space: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not an array of numbers|does not fit|inhomogeneous"):
        as_array(space, value)


@given(st.data())
@steady
def test_an_array_of_the_right_dtype_comes_back_as_it_is(data: st.DataObject) -> None:
    dtype = data.draw(integer_dtypes(endianness="=") | floating_dtypes(endianness="=", sizes=(32, 64)))
    given = data.draw(arrays(dtype, array_shapes(min_dims=0, max_side=3)))
    low = -np.inf if dtype.kind != "u" else 0
    high = np.inf if dtype.kind != "u" else np.iinfo(dtype).max
    space = Box(low, high, given.shape, dtype)
    assert np.array_equal(as_array(space, given), given, equal_nan=dtype.kind == "f")


CONVERTED = """
import envweave_gym, gymnasium as gym, numpy as np, sys
import envweave_gym.core.spaces, envweave_gym.core.array_conversion
assert not {"torch", "array_api_compat"} & sys.modules.keys()
envweave_gym.core.array_conversion.adapt_converters()
assert not {"torch", "array_api_compat"} & sys.modules.keys()

from gymnasium.wrappers.array_conversion import array_conversion
from envweave_gym import Fault, FaultKind, Stream
from envweave_gym.core.spaces import Unicode

class Texts(gym.Env):
    observation_space = action_space = Unicode(9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        envweave_gym.core.array_conversion.adapt_converters()
        return "héllo", {"stream": Stream(), "fault": Fault(FaultKind.CRASH, "x", True), "n": 1}

    def step(self, action):
        return action, 1.0, False, False, {"rows": np.array([Stream(), None]), "numbers": np.arange(2)}

env = gym.wrappers.ArrayConversion(Texts(), env_xp=np, target_xp=np)
observation, info = env.reset(seed=0)
assert observation == "héllo", observation
assert info["stream"] == Stream() and info["fault"].message == "x" and info["n"] == 1
observation, *_, info = env.step("中")
assert observation == "中"
assert info["rows"].tolist() == [Stream(), None] and info["numbers"].tolist() == [0, 1]
handlers = dict(array_conversion.registry)
envweave_gym.core.array_conversion.adapt_converters()
assert dict(array_conversion.registry) == handlers
"""


def test_converters_hand_on_texts_streams_and_faults_once_adapted() -> None:
    needs_module("array_api_compat")
    done = subprocess.run([sys.executable, "-c", CONVERTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("env_id", "action"), [("envweave/LineWorld-v0", 1), ("envweave/Echo-v0", "héllo")])
def test_numpy_to_torch_goes_around_environments_made_by_id(env_id: str, action: Any) -> None:
    torch = needs_module("torch", "train")
    plain, env = gym.make(env_id), gym.wrappers.NumpyToTorch(gym.make(env_id))
    for expected, result in (
        (plain.reset(seed=3), env.reset(seed=3)),
        (plain.step(action), env.step(action)),
    ):
        observation, info = result[0], result[-1]
        if isinstance(expected[0], np.ndarray):
            assert isinstance(observation, torch.Tensor)
            observation = observation.numpy()
        assert np.array_equal(observation, expected[0])
        assert info["stream"] == expected[-1]["stream"]
