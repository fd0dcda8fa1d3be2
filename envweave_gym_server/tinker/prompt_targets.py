"""Tables of tokens whose log-probabilities a request asks for in its prompt: ``target_prompt_logprobs`` of the SDK.

Row ``i`` of a table has the tokens that are scored at position ``i + 1`` of the prompt; -1 is an empty cell. A table is
dense, or sparse in compressed rows (CSR), and so is the table of log-probabilities in the reply.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.models.prompt_scores import PromptTargets

EMPTY = -1
MAX_VALUES = 16 << 20
"""Values of a table, which take 8 bytes each."""


class TokenTable(msgspec.Struct):
    """A table of tokens in a JSON body; with indices of rows and columns it is sparse."""

    data: list[int]
    shape: list[int]
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None

    def targets(self, prompt_length: int, vocabulary: int) -> PromptTargets:
        """Return the cells that are not empty; raise :class:`BadInput` for a table that does not fit the prompt."""
        name = "target_prompt_logprobs"
        if len(self.shape) != 2 or self.shape[0] != prompt_length - 1 or not 0 < self.shape[1] <= vocabulary:
            raise BadInput(
                f"{name} has the shape {self.shape}; give [{prompt_length - 1}, K] for this prompt, with K from 1 to "
                f"{vocabulary}"
            )
        if len(self.data) > MAX_VALUES:
            raise BadInput(f"{name} has {len(self.data)} values; give {MAX_VALUES} at most")
        wrong = next((token for token in self.data if not EMPTY <= token < vocabulary), None)
        if wrong is not None:
            raise BadInput(f"{name} has the token {wrong}; the model has tokens 0 to {vocabulary - 1}")
        rows = self._rows()
        if rows is None or len(rows) != len(self.data):
            raise BadInput(
                f"{name} has {len(self.data)} values, which are not those of its shape {self.shape}"
            )
        tokens = np.array(self.data, np.int64)
        return PromptTargets(rows[tokens != EMPTY], tokens[tokens != EMPTY])

    def _rows(self) -> NDArray[np.int64] | None:
        """Return the row of each value, ``None`` if the indices of a sparse table contradict each other."""
        count, columns = self.shape
        if self.sparse_crow_indices is None or self.sparse_col_indices is None:
            return np.repeat(np.arange(count), columns) if columns * count == len(self.data) else None
        starts, used = self.sparse_crow_indices, self.sparse_col_indices
        if len(starts) != count + 1 or starts != sorted(starts) or (starts[0], starts[-1]) != (0, len(used)):
            return None
        if not all(0 <= column < columns for column in used):
            return None
        return np.repeat(np.arange(count), np.diff(np.array(starts, np.int64)))

    def filled(self, logprobs: NDArray[np.float32]) -> Any:
        """Return the protobuf message of the reply: the log-probabilities of the cells, 0 in empty ones."""
        values = np.zeros(len(self.data), np.float32)
        values[np.array(self.data, np.int64) != EMPTY] = logprobs
        message = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=self.shape)
        if self.sparse_crow_indices is None or self.sparse_col_indices is None:
            message.dense = values.tobytes()
            return message
        message.sparse_csr.values = values.tobytes()
        message.sparse_csr.crow_indices = np.array(self.sparse_crow_indices, np.int64).tobytes()
        message.sparse_csr.col_indices = np.array(self.sparse_col_indices, np.int64).tobytes()
        return message
