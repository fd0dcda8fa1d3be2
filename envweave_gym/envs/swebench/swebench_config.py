"""The constructor arguments of both environments over SWE-bench Lite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import Config, local, one_of, true_or_false, wire
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.data.sources import SYNTHETIC
from envweave_gym.data.swebench_lite import SOURCE
from envweave_gym.envs.tasks.choice_config import ChoiceConfig
from envweave_gym.swebench.evaluation import TESTS_TIMEOUT_S, Trial
from envweave_gym.swebench.grading import Tests

MAX_ISSUE = 1_000_000
"""Upper limit of ``max_issue``, in characters."""
MAX_TURNS = 100
_DATASET = wire('a name on the hub, a path, or `"synthetic"`', only=(SOURCE.hub, SYNTHETIC))
_SPLIT = wire('`"test"` (300 issues) or `"dev"` (23)')


class LocConfig(ChoiceConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/SWEBenchLiteLocMCQ-v0``."""

    dataset: Annotated[str, _DATASET] = SOURCE.hub
    split: Annotated[str, _SPLIT] = "test"
    candidates: Annotated[str | Sequence[str] | None, local("where wrong options come from, see below")] = (
        None
    )
    options: Annotated[
        int, wire("the number of options, from 2 to 26; fewer if the repository has fewer candidates")
    ] = 4
    mask_paths: Annotated[bool, wire("replace names of files in the issue by `<file>`")] = False
    max_issue: Annotated[int, wire("cut the issue after this many characters")] = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        true_or_false("mask_paths", self.mask_paths)
        check_int("max_issue", self.max_issue, "no length", 1, MAX_ISSUE)


class PatchConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/SWEBenchLitePatch-v0``."""

    dataset: Annotated[str, _DATASET] = SOURCE.hub
    split: Annotated[str, _SPLIT] = "test"
    evaluation: Annotated[
        str | None,
        local(
            'where patches are tried: `"docker"`, a fresh container of the official image, or `"local"`, a copy in the '
            'sandbox; by default locally for `"synthetic"`, which has no official images, else in containers'
        ),
    ] = None
    evaluation_kwargs: Annotated[Mapping[str, Any] | None, local("arguments of that, see below")] = None
    reward: Annotated[
        Literal["binary", "shaped"],
        wire('`"binary"`: 1.0 for a patch that resolves the issue, else 0.0; `"shaped"` pays parts'),
    ] = "binary"
    tests: Annotated[
        Tests,
        wire('the tests that count: `"all"`, or `"fail_to_pass"`, those that the accepted patch makes pass'),
    ] = "all"
    max_tests: Annotated[
        int | None,
        wire("limit of the tests that passed before and count, the same ones for every patch of an issue"),
    ] = None
    timeout: Annotated[float, local("time limit of the tests in seconds")] = TESTS_TIMEOUT_S
    at_once: Annotated[
        int | None,
        local(
            "limit of concurrent evaluations, over all processes of this user on this machine and the servers in "
            'containers that `backend="docker"` has started; by default one for each core'
        ),
    ] = None
    observation: Annotated[
        Literal["text", "chat"],
        wire('`"text"`, the prompt, or `"chat"`, the conversation as a list of messages'),
    ] = "text"
    turns: Annotated[
        int, wire("with N, up to N - 1 replies may look at the repository before the one that is final")
    ] = 1
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        given: Any = self.evaluation_kwargs
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"evaluation_kwargs={shown(given)} is no dict of arguments")
        self.trial()
        one_of("reward", self.reward, ("binary", "shaped"))
        check_int("turns", self.turns, "no number of replies", 1, MAX_TURNS)
        one_of("observation", self.observation, ("text", "chat"))

    def trial(self) -> Trial:
        """Return the settings of the evaluation; raise ``InvalidArgument`` if they are invalid."""
        backend = self.evaluation
        if backend is None:
            backend = "local" if self.dataset == SYNTHETIC else "docker"
        options = dict(self.evaluation_kwargs or {})
        return Trial(backend, self.tests, self.max_tests, self.timeout, self.at_once, options)
