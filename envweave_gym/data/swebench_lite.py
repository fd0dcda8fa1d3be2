"""The data set SWE-bench Lite: issues of Python projects, each with the patch that closed it and its tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import force_setattr

from envweave_gym.data.rows import Rows
from envweave_gym.data.sources import Source, rows_of
from envweave_gym.data.swebench_scripts import changed_paths, eval_script_of, image_of, log_parser_of

_COLUMNS = {"failing": "FAIL_TO_PASS", "passing": "PASS_TO_PASS"}


class Instance(msgspec.Struct, frozen=True, kw_only=True, rename=_COLUMNS, gc=False):
    """A row of SWE-bench Lite: an issue, the patch that closed it, and the tests that check a patch.

    Rows exist in two schemas. The classic one has twelve columns, with test names as JSON strings. The newer one has
    lists of names, and columns that define the evaluation. This class gives both the same attributes:
    columns that a classic row lacks are computed, and stay empty only for repositories that are not in Lite.
    """

    instance_id: str
    repo: str
    """The owner and name of the repository on GitHub."""
    base_commit: str
    """The hash of the commit that the issue describes and to which the patches apply."""
    patch: str
    """The gold patch: the diff that closed the issue, without its tests."""
    test_patch: str
    """The diff that adds the tests of the fix."""
    problem_statement: str
    """The text of the issue."""
    version: str
    failing: tuple[str, ...] | str
    """The column FAIL_TO_PASS, a tuple once the row is parsed; use :attr:`fail_to_pass`."""
    passing: tuple[str, ...] | str
    """The column PASS_TO_PASS, a tuple once the row is parsed; use :attr:`pass_to_pass`."""
    hints_text: str = ""
    """The comments below the issue, which often reveal the fix."""
    created_at: str = ""
    environment_setup_commit: str = ""
    image: str = ""
    """The name of the official container image, which has the repository in ``/testbed``."""
    eval_script: str = ""
    """The shell script that applies the test patch in the image and runs its tests; empty if unknown."""
    log_parser: str = ""
    """The name of the official parser for the output of the tests; empty if unknown."""
    eval_type: str = "pass_and_fail"
    difficulty: str = ""

    def __post_init__(self) -> None:
        # The struct is frozen, so only force_setattr can replace what the columns contained.
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
        """The names of the tests that fail before the gold patch and pass after it."""
        return tuple(self.failing)

    @property
    def pass_to_pass(self) -> tuple[str, ...]:
        """The names of the tests that pass before and after the gold patch."""
        return tuple(self.passing)

    @property
    def gold_files(self) -> tuple[str, ...]:
        """The paths of the files that the gold patch changes."""
        return changed_paths(self.patch)

    @property
    def test_files(self) -> tuple[str, ...]:
        """The paths of the files that the test patch changes or adds."""
        return changed_paths(self.test_patch)


def _names(column: tuple[str, ...] | str, name: str) -> tuple[str, ...]:
    """Return the test names in a column, which is a list of names or the JSON text of such a list."""
    if not isinstance(column, str):
        return column
    try:
        return msgspec.json.decode(column, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} is neither a list of names nor one as JSON: {error}") from None


def _synthetic(split: str) -> Sequence[Instance]:
    from envweave_gym.data.toy_repo import toy_instances  # here, as that module imports this one

    return toy_instances(split)


SOURCE = Source("swebench_lite", Instance, "princeton-nlp/SWE-bench_Lite", ("test", "dev"), _synthetic)


def instances(dataset: str = SOURCE.hub, split: str = "test") -> Rows[Instance]:
    """Return the instances of a split; ``dataset`` is a name on the hub, a path, or ``"synthetic"``."""
    return rows_of(SOURCE, dataset, split)
