"""SWE-bench Lite: real issues of Python projects, with the patch that closed each and its tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import force_setattr

from envweave_gym.data.rows import Rows
from envweave_gym.data.sources import Source, rows_of
from envweave_gym.data.swebench_scripts import changed_paths, eval_script_of, image_of, log_parser_of

_COLUMNS = {"failing": "FAIL_TO_PASS", "passing": "PASS_TO_PASS"}


class Instance(msgspec.Struct, frozen=True, kw_only=True, rename=_COLUMNS, gc=False):
    """One row: an issue, the patch that closed it, and the tests that tell.

    Rows come in two schemas. The classic one has twelve columns, and the names of tests in strings of JSON;
    the newer one has lists of names, and says itself how it is evaluated. Here both are the same: what a
    classic row lacks is rebuilt, except for repositories that Lite does not have.
    """

    instance_id: str
    repo: str
    """Owner and name on GitHub."""
    base_commit: str
    """The commit that the issue is about and the patches apply to."""
    patch: str
    """The gold patch."""
    test_patch: str
    problem_statement: str
    """The text of the issue."""
    version: str
    failing: tuple[str, ...] | str
    """The column FAIL_TO_PASS as it came; read :attr:`fail_to_pass`."""
    passing: tuple[str, ...] | str
    """The column PASS_TO_PASS as it came; read :attr:`pass_to_pass`."""
    hints_text: str = ""
    """The comments below the issue; they often give the answer away."""
    created_at: str = ""
    environment_setup_commit: str = ""
    image: str = ""
    """The official image, with the repository in ``/testbed``."""
    eval_script: str = ""
    """The script for the image: it applies the test patch and runs its tests. Empty if unknown."""
    log_parser: str = ""
    """The name of the official parser for what the tests print. Empty where nobody knows which."""
    eval_type: str = "pass_and_fail"
    difficulty: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "failing", _names(self.failing, "FAIL_TO_PASS"))
        force_setattr(self, "passing", _names(self.passing, "PASS_TO_PASS"))
        if not self.image:
            force_setattr(self, "image", image_of(self.instance_id))
        if not self.log_parser:
            force_setattr(self, "log_parser", log_parser_of(self.repo))
        if not self.eval_script:
            script = eval_script_of(self.repo, self.version, self.base_commit, self.test_patch)
            force_setattr(self, "eval_script", script)

    @property
    def fail_to_pass(self) -> tuple[str, ...]:
        """The tests that the patch makes pass."""
        return tuple(self.failing)

    @property
    def pass_to_pass(self) -> tuple[str, ...]:
        """The tests that pass before and after."""
        return tuple(self.passing)

    @property
    def gold_files(self) -> tuple[str, ...]:
        """The files that the gold patch changes."""
        return changed_paths(self.patch)

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that the test patch changes or adds."""
        return changed_paths(self.test_patch)


def _names(column: tuple[str, ...] | str, name: str) -> tuple[str, ...]:
    """The names of tests in a column: a list of them, or such a list as a string of JSON."""
    if not isinstance(column, str):
        return column
    try:
        return msgspec.json.decode(column, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} is neither a list of names nor one as JSON: {error}") from None


def _synthetic(split: str) -> Sequence[Instance]:
    from envweave_gym.data.toy_repo import toy_instances  # here, as it makes instances itself

    return toy_instances(split)


SOURCE = Source("swebench_lite", Instance, "princeton-nlp/SWE-bench_Lite", ("test", "dev"), _synthetic)


def instances(dataset: str = SOURCE.hub, split: str = "test") -> Rows[Instance]:
    """The instances of a split; ``dataset`` is a name on the hub, a path, or ``"synthetic"``."""
    return rows_of(SOURCE, dataset, split)
