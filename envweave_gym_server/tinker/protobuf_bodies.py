"""Binary bodies of the Tinker API: training requests to tensors, and results to protobuf messages.

The schema is that of the installed SDK, ``tinker.proto``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import zstandard
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb
from torch import Tensor

from envweave_gym.core.faults import shown
from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.body_limits import SMALL_BODY
from envweave_gym_server.tinker.futures import PROTOBUF, Reply
from envweave_gym_server.tinker.models.decoding import SampledSequence, SampleResult, TokenLogprobs
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.models.training_pass import PassResult
from envweave_gym_server.tinker.provenance import Span
from envweave_gym_server.tinker.request_bodies import Sample

LARGEST_BODY = 256 << 20
MAX_SPARSE_CELLS = 16 << 20
"""Cells of all sparse tensors of a request together, zeros included, which take 8 bytes each."""
_CELL_BYTES, _PIECE_BYTES = 8, 1 << 20
_DTYPES: dict[int, type[np.generic]] = {
    pb.DTYPE_FLOAT32: np.float32,
    pb.DTYPE_INT64: np.int64,
    pb.DTYPE_INT32: np.int32,
}
_NO_LOGPROB = -99999.0
"""The SDK's value of an empty cell in a table of most probable tokens."""


@dataclass(frozen=True)
class TrainingRequest:
    """A decoded ``ForwardBackwardRequest``; ``spans`` has the spans of inputs and of targets of each datum."""

    model_id: str
    seq_id: int
    datums: list[Datum]
    loss: str
    loss_config: dict[str, float | str]
    forward_only: bool
    spans: list[tuple[list[Span], list[Span]]]

    @property
    def size(self) -> int:
        """The bytes of the datums in memory."""
        tokens = 4 * sum(len(one.tokens) for one in self.datums)
        return tokens + sum(values.nbytes for one in self.datums for values in one.inputs.values())


def decompressed(body: bytes, encoding: str, take: Callable[[int], None]) -> bytes:
    """Return a request's body without its compression, ``zstd`` or none; ``take`` admits more bytes, or raises."""
    if not encoding:
        return body
    if encoding != "zstd":
        raise BadInput(f"Content-Encoding {shown(encoding)} is not read here; send zstd, or none")
    pieces: list[bytes] = []
    length = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            while piece := reader.read(_PIECE_BYTES):
                length += len(piece)
                if length > LARGEST_BODY:
                    raise BadInput(
                        f"the body is larger than {LARGEST_BODY >> 20} MB; send fewer datums at a time"
                    )
                if length > SMALL_BODY:
                    take(len(piece))
                pieces.append(piece)
    except zstandard.ZstdError as error:
        raise BadInput(f"the body is not zstd: {error}") from None
    return b"".join(pieces)


def training_request(body: bytes, take: Callable[[int], None]) -> TrainingRequest:
    """Decode the body of ``forward_backward``; ``take`` admits the bytes of sparse tensors, or raises."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise BadInput("the body is no ForwardBackwardRequest of tinker 0.25 or later") from None
    take(_CELL_BYTES * _sparse_cells(message))
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.HasField("text") else value.number
    return TrainingRequest(
        message.model_id,
        message.seq_id,
        [_datum(index, one) for index, one in enumerate(message.data)],
        message.loss_fn,
        config,
        message.forward_only,
        [(_spans(one.model_input_spans), _spans(one.loss_fn_input_spans)) for one in message.data],
    )


def _sparse_cells(message: pb.ForwardBackwardRequest) -> int:
    """Return the cells of all sparse tensors; refuse those that a few bytes claim to be larger than any row needs."""
    tensors = (one for datum in message.data for one in datum.loss_fn_inputs.values())
    cells = sum(
        math.prod(map(abs, one.shape)) for one in tensors if one.WhichOneof("encoding") == "sparse_csr"
    )
    if cells > MAX_SPARSE_CELLS:
        raise BadInput(
            f"the sparse tensors of the request have {cells} cells together, with their zeros; send fewer datums at a "
            f"time, {MAX_SPARSE_CELLS} cells at most"
        )
    return cells


def _datum(index: int, message: pb.Datum) -> Datum:
    tokens = array("i")  # 4 bytes each, as many requests may wait
    for chunk in message.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise BadInput(f"datum {index} has a chunk that is not text; only text is served here")
        try:
            tokens.frombytes(chunk.encoded_text.tokens)
        except ValueError:
            raise BadInput(f"datum {index} has tokens that are not int32") from None
    inputs = {name: _tensor(f"datum {index}: {name}", one) for name, one in message.loss_fn_inputs.items()}
    return Datum(tokens, inputs)


def _tensor(what: str, message: pb.Tensor) -> Tensor:
    """Decode a tensor, a sparse one to a dense one with zeros; floats become float32, integers int64."""
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise BadInput(f"{what} has a type that is not served here; send float32 or int64")
    shape = tuple(message.shape)
    try:
        if message.WhichOneof("encoding") == "sparse_csr":
            values = _dense(message.sparse_csr, dtype, shape)
        else:
            values = _array(message.dense, dtype)
            values = values.reshape(shape) if shape else values
    except (ValueError, IndexError):
        raise BadInput(f"{what} does not have the shape {shape} that it claims") from None
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))


def _dense(message: pb.SparseCsr, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    rows, _ = shape
    starts = _array(message.crow_indices, np.int64)
    dense = np.zeros(shape, dtype)
    where = np.repeat(np.arange(rows), np.diff(starts))
    dense[where, _array(message.col_indices, np.int64)] = _array(message.values, dtype)
    return dense


def _array(text: bytes, dtype: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(text, dtype)


def _spans(messages: Sequence[pb.ProvenanceSpan]) -> list[Span]:
    spans: list[Span] = []
    for message in messages:
        is_sampled = message.WhichOneof("span") == "sampled_tokens"
        one = message.sampled_tokens if is_sampled else message.prompt_tokens
        if one.offset < 0 or one.length < 0:
            raise BadInput("a provenance span has a negative offset or length")
        spans.append(Span(one.sequence_id, one.offset, one.length, is_sampled))
    return spans


def training_reply(result: PassResult) -> Reply:
    """Encode the result of a pass: neighbouring datums with targets of one width are one record."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="TorchLossReturn")
    for name, value in result.metrics.items():
        message.metrics[name] = value
    for width, rows in groupby(result.logprobs, key=lambda row: tuple(row.shape[1:])):
        arrays = [row.detach().numpy().astype(np.float32) for row in rows]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([array.nbytes for array in arrays], out=offsets[1:])
        record = message.loss_fn_outputs.add()
        record.num_datums = len(arrays)
        record.fields["logprobs"].CopyFrom(
            pb.BatchedTensor(
                data=b"".join(array.tobytes() for array in arrays),
                offsets=offsets.tobytes(),
                dtype=pb.DTYPE_FLOAT32,
                trailing_shape=list(width),
            )
        )
    return Reply(message.SerializeToString(), PROTOBUF)


def sample_reply(result: SampleResult, options: Sample) -> Reply:
    """Encode the result of a sampling request."""
    message = pb.SampleResponse()
    for sequence in result.sequences:
        message.sequences.append(_sequence(sequence, options.topk_sample_logprobs))
    hidden = 0
    if result.prompt_logprobs is not None:
        if options.prompt_logprobs_last_n is not None:
            hidden = max(0, len(result.prompt_logprobs) - options.prompt_logprobs_last_n)
        row = np.array([np.nan if one is None else one for one in result.prompt_logprobs], np.float32)
        row[:hidden] = np.nan
        message.prompt_logprobs = row.tobytes()
    if options.topk_prompt_logprobs and result.top_prompt_logprobs is not None:
        top = [None if position < hidden else one for position, one in enumerate(result.top_prompt_logprobs)]
        message.topk_prompt_logprobs.CopyFrom(_top(top, options.topk_prompt_logprobs))
    if options.target_prompt_logprobs is not None and result.target_logprobs is not None:
        message.target_prompt_logprobs.CopyFrom(options.target_prompt_logprobs.filled(result.target_logprobs))
    return Reply(message.SerializeToString(), PROTOBUF)


def _sequence(sequence: SampledSequence, top: int) -> pb.SampledSequence:
    stopped = sequence.stop_reason == "stop"
    message = pb.SampledSequence(
        stop_reason=pb.STOP_REASON_STOP if stopped else pb.STOP_REASON_LENGTH,
        tokens=np.asarray(sequence.tokens, np.int32).tobytes(),
        logprobs=np.asarray(sequence.logprobs, np.float32).tobytes(),
    )
    if top:
        message.topk_sampled_logprobs.CopyFrom(_top(sequence.top_logprobs, top))
    return message


def _top(rows: Sequence[TokenLogprobs | None], width: int) -> pb.TopkLogprobs:
    """Encode the most probable tokens of each position as two tables."""
    tokens = np.zeros((len(rows), width), np.int32)
    logprobs = np.full((len(rows), width), _NO_LOGPROB, np.float32)
    for position, row in enumerate(rows):
        for column, (token, logprob) in enumerate((row or [])[:width]):
            tokens[position, column], logprobs[position, column] = token, logprob
    return pb.TopkLogprobs(token_ids=tokens.tobytes(), logprobs=logprobs.tobytes(), k=width, length=len(rows))
