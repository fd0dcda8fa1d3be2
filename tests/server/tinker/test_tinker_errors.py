"""Bad input: the SDK's own exception with one clear sentence, at once, and other clients are not affected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import tinker
import zstandard
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker_server import BASE, KEY, Server, connected, params, prompt, row

from envweave_gym_server.tinker import engine
from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.models.decoding import sample
from envweave_gym_server.tinker.protobuf_bodies import MAX_SPARSE_CELLS, decompressed, training_request

DEADLINE_S = 5.0
TOKENS = [3, 4, 5, 6, 7]
Call = Callable[[tinker.ServiceClient], Any]


def model(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(BASE, rank=4, seed=1).result()


def pass_of(datum: types.Datum, loss: str = "cross_entropy", config: Any = None) -> Call:
    return lambda client: model(client).forward_backward([datum], loss, config)


def sample_of(model_input: types.ModelInput, **options: Any) -> Call:
    return lambda client: (
        client.create_sampling_client(base_model=BASE).result().sample(model_input, 1, params(**options))
    )


def top_of(**options: Any) -> Call:
    return lambda client: (
        client.create_sampling_client(base_model=BASE).result().sample(prompt([3]), 1, params(), **options)
    )


def twice_saved(client: tinker.ServiceClient) -> Any:
    training = model(client)
    training.save_state("twice").result()
    return training.save_state("twice")


def loaded_without_optimizer(client: tinker.ServiceClient) -> Any:
    path = model(client).save_weights_for_sampler("end").result().path
    return client.create_training_client_from_state_with_optimizer(path)


def step_after(datum: types.Datum, loss: str) -> Call:
    def call(client: tinker.ServiceClient) -> Any:
        training = model(client)
        training.forward_backward([datum], loss).result()
        return training.optim_step(types.AdamParams())

    return call


def step_with(**settings: float) -> Call:
    return lambda client: model(client).optim_step(types.AdamParams(**settings))


def sampled_pass(config: Any, loss: str = "ppo", **inputs: list[float]) -> Call:
    """A pass over a row of sampled tokens."""
    return pass_of(row(TOKENS, **{"logprobs": [0.0] * 4, "advantages": [1.0] * 4, **inputs}), loss, config)


IMAGE = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png", expected_tokens=1)])
ASSET = types.ModelInput(chunks=[types.ImageAssetPointerChunk(location="x", format="png", expected_tokens=1)])
HUGE = [1e30, 1e30, 1e30, 1e30]
REFUSED: dict[str, tuple[Call, type[tinker.TinkerError], str]] = {
    "unknown base": (
        lambda client: client.create_lora_training_client("no/such"),
        tinker.BadRequestError,
        BASE,
    ),
    "rank": (
        lambda client: client.create_lora_training_client(BASE, rank=0),
        tinker.BadRequestError,
        "rank 0",
    ),
    "optimizer": (
        lambda client: client.create_lora_training_client(BASE, optimizer=types.DimuonOptimizerConfig()),
        tinker.BadRequestError,
        "adamw",
    ),
    "unknown base to sample": (
        lambda client: client.create_sampling_client(base_model="no/such"),
        tinker.BadRequestError,
        BASE,
    ),
    "unknown checkpoint": (
        lambda client: client.create_training_client_from_state("tinker://a:train:0/weights/b"),
        tinker.NotFoundError,
        "no checkpoint",
    ),
    "path outside": (
        lambda client: client.create_training_client_from_state("tinker://../weights/b"),
        tinker.BadRequestError,
        "tinker://RUN/weights/NAME",
    ),
    "name of a checkpoint": (
        lambda client: model(client).save_state("../b"),
        tinker.BadRequestError,
        "letters",
    ),
    "name taken": (twice_saved, tinker.RequestFailedError, "overwrite=True"),
    "no optimizer": (loaded_without_optimizer, tinker.BadRequestError, "optimiser"),
    "too long prompt": (sample_of(prompt([3] * 999)), tinker.BadRequestError, "999"),
    "empty prompt": (sample_of(types.ModelInput.empty()), tinker.BadRequestError, "prompt"),
    "token of no word": (sample_of(prompt([3, 99_999])), tinker.BadRequestError, "99999"),
    "token of more than 64 bits": (
        sample_of(prompt([3, 2**70])),
        tinker.BadRequestError,
        str(2**70),
    ),
    "most probable tokens": (top_of(topk_sample_logprobs=10**12), tinker.BadRequestError, str(10**12)),
    "most probable tokens of the prompt": (
        top_of(topk_prompt_logprobs=101),
        tinker.BadRequestError,
        "top_prompt_logprobs must be 0 to",
    ),
    "targets of another prompt": (
        top_of(target_prompt_logprobs=types.TensorData(data=[3, 4], dtype="int64", shape=[2, 1])),
        tinker.BadRequestError,
        r"the shape \[2, 1\]; give \[0, K\]",
    ),
    "target of no word": (
        lambda client: (
            client.create_sampling_client(base_model=BASE)
            .result()
            .sample(
                prompt([3, 4]),
                1,
                params(),
                target_prompt_logprobs=types.TensorData(data=[99_999], dtype="int64", shape=[1, 1]),
            )
        ),
        tinker.BadRequestError,
        "the token 99999",
    ),
    "tokens drawn beside the prompt": (
        top_of(prompt_alt_tokens_k=2),
        tinker.BadRequestError,
        "prompt_alt_tokens_k is not served here",
    ),
    "targets of no width": (
        pass_of(
            types.Datum(
                model_input=prompt(TOKENS),
                loss_fn_inputs={
                    "target_tokens": types.TensorData(data=[], dtype="int64", shape=[len(TOKENS), 0])
                },
            )
        ),
        tinker.BadRequestError,
        "0 targets a token",
    ),
    "number of samples": (
        lambda client: (
            client.create_sampling_client(base_model=BASE).result().sample(prompt([3]), 10**9, params())
        ),
        tinker.BadRequestError,
        "1000000000",
    ),
    "temperature": (sample_of(prompt([3]), temperature=-1.0), tinker.BadRequestError, "temperature"),
    "image to sample": (sample_of(IMAGE), tinker.BadRequestError, "image"),
    "image to train": (
        pass_of(types.Datum(model_input=IMAGE, loss_fn_inputs={"target_tokens": [3]})),
        tinker.BadRequestError,
        "text",
    ),
    "tensor lengths": (pass_of(row(TOKENS, weights=[1.0])), tinker.BadRequestError, "weights"),
    "missing input": (pass_of(row(TOKENS), "ppo"), tinker.BadRequestError, "advantages"),
    "unknown loss": (pass_of(row(TOKENS), "no_such_loss"), tinker.BadRequestError, "cross_entropy"),
    "unknown option": (
        pass_of(row(TOKENS, logprobs=[0.0] * 4, advantages=[1.0] * 4), "ppo", {"no_such": 1.0}),
        tinker.BadRequestError,
        "no_such",
    ),
    "learning rate": (step_with(learning_rate=-1.0), tinker.BadRequestError, "learning_rate -1"),
    "learning rate that is no number": (
        step_with(learning_rate=math.nan),
        tinker.BadRequestError,
        "learning_rate",
    ),
    "infinite learning rate": (
        step_with(learning_rate=math.inf),
        tinker.BadRequestError,
        "learning_rate",
    ),
    "beta of one": (step_with(beta1=1.0), tinker.BadRequestError, "beta1 1.0 is not from 0 to below 1"),
    "negative beta": (step_with(beta2=-0.5), tinker.BadRequestError, "beta2 -0.5"),
    "beta that is no number": (step_with(beta2=math.nan), tinker.BadRequestError, "beta2"),
    "epsilon": (step_with(eps=-1e-8), tinker.BadRequestError, "eps"),
    "weight decay": (step_with(weight_decay=-1.0), tinker.BadRequestError, "weight_decay"),
    "limit of gradients": (step_with(grad_clip_norm=math.nan), tinker.BadRequestError, "grad_clip_norm"),
    "thresholds in the wrong order": (
        sampled_pass({"clip_low_threshold": 1.3, "clip_high_threshold": 0.7}),
        tinker.BadRequestError,
        "clip_low_threshold 1.3 of 'ppo' is above clip_high_threshold 0.7",
    ),
    "low threshold above the default of the high one": (
        sampled_pass({"clip_low_threshold": 1.3}, "cispo"),
        tinker.BadRequestError,
        "clip_high_threshold 1.2",
    ),
    "high threshold below the default of the low one": (
        sampled_pass({"clip_high_threshold": 0.9}, "gspo"),
        tinker.BadRequestError,
        "above clip_high_threshold 0.9",
    ),
    "negative threshold": (
        sampled_pass({"clip_low_threshold": -0.1}),
        tinker.BadRequestError,
        "finite number from 0 on",
    ),
    "threshold that is no number": (
        sampled_pass({"clip_high_threshold": math.nan}),
        tinker.BadRequestError,
        "finite number from 0 on",
    ),
    "threshold of text": (
        sampled_pass({"clip_high_threshold": "high"}),
        tinker.BadRequestError,
        "finite number from 0 on",
    ),
    "infinite beta of dro": (
        sampled_pass({"beta": math.inf}, "dro"),
        tinker.BadRequestError,
        "'beta' of 'dro'",
    ),
    "option of another loss": (
        sampled_pass({"clip_low_threshold": 0.5}, "importance_sampling"),
        tinker.BadRequestError,
        "its options: none",
    ),
    "thresholds of tokens in the wrong order": (
        sampled_pass(None, clip_low_threshold=[1.0] * 4, clip_high_threshold=[1.0, 1.0, 0.5, 1.0]),
        tinker.BadRequestError,
        "above clip_high_threshold at some token",
    ),
    "negative threshold of a token": (
        sampled_pass(None, clip_low_threshold=[0.0, 0.0, -1.0, 0.0]),
        tinker.BadRequestError,
        "value below 0",
    ),
    "advantages that are no numbers": (
        sampled_pass(None, advantages=[math.nan] * 4),
        tinker.BadRequestError,
        "not finite",
    ),
    "row that is too long": (pass_of(row([3] * 999)), tinker.BadRequestError, "998 tokens"),
    "token of no word to train": (pass_of(row([3, 99_999, 3])), tinker.BadRequestError, "99999"),
    "targets of another length": (
        pass_of(
            types.Datum(model_input=prompt(TOKENS), loss_fn_inputs={"target_tokens": [3], "weights": [1.0]})
        ),
        tinker.BadRequestError,
        "of datum 0 has 1 entries, but the row has 5 tokens",
    ),
    "reply without tokens": (sample_of(prompt([3]), max_tokens=0), tinker.BadRequestError, "max_tokens"),
    "empty stop": (sample_of(prompt([3]), stop=["w", ""]), tinker.BadRequestError, "stop string is empty"),
    "top_p": (sample_of(prompt([3]), top_p=0.0), tinker.BadRequestError, "top_p"),
    "asset to sample": (sample_of(ASSET), tinker.BadRequestError, "image_asset_pointer"),
    "name of nothing to train": (
        lambda client: client.create_lora_training_client(
            BASE, rank=4, train_mlp=False, train_attn=False, train_unembed=False
        ),
        (tinker.BadRequestError, ValueError, AssertionError),
        "train_unembed|At least one",
    ),
    "time to live": (
        lambda client: model(client).save_weights_for_sampler("x", ttl_seconds=-5),
        tinker.BadRequestError,
        "ttl_seconds -5",
    ),
    "gradient": (
        step_after(row(TOKENS, weights=HUGE), "cross_entropy"),
        tinker.RequestFailedError,
        "not finite",
    ),
    "publish": (
        lambda client: tinker.RestClient(
            base_url=client._base_url, api_key=KEY
        ).publish_checkpoint_from_tinker_path("tinker://a/weights/b"),
        tinker.BadRequestError,
        "published",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_raises_the_sdks_error_with_a_clear_sentence(client: tinker.ServiceClient, case: str):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(client).result(timeout=DEADLINE_S)
    sampler = client.create_sampling_client(base_model=BASE).result(timeout=DEADLINE_S)
    assert sampler.sample(prompt([3]), 1, params()).result(timeout=DEADLINE_S).sequences


def test_a_wrong_key_is_an_authentication_error(server: Server):
    with pytest.raises(tinker.AuthenticationError, match="API key is wrong"):
        tinker.RestClient(base_url=server.url, api_key="tml-another").get_server_capabilities().result(
            timeout=5
        )


def test_a_missing_key_is_refused(server: Server):
    answer = requests.get(f"{server.url}/api/v1/get_server_capabilities", timeout=5)
    assert answer.status_code == 401
    assert "TINKER_API_KEY" in answer.json()["detail"]


def test_a_model_that_is_not_known_is_not_found(client: tinker.ServiceClient, server: Server):
    training = model(client)
    server.service.models.drop(training.model_id)
    with pytest.raises(tinker.NotFoundError, match="last checkpoint"):
        training.optim_step(types.AdamParams()).result(timeout=DEADLINE_S)


@pytest.mark.parametrize("first", ["service", "rest"])
def test_a_wrong_key_is_refused_to_every_client_of_the_sdk_at_once(server: Server, first: str):
    def call() -> Any:
        if first == "service":
            return server.client("tml-another").create_sampling_client(base_model=BASE)
        return tinker.RestClient(base_url=server.url, api_key="tml-another").list_training_runs()

    started = time.monotonic()
    with pytest.raises(tinker.AuthenticationError, match="API key is wrong"):
        call().result(timeout=DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S


def test_no_key_is_an_error_of_the_sdk_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(tinker.TinkerError, match="TINKER_API_KEY"):
        tinker.ServiceClient(base_url=server.url).create_sampling_client(base_model=BASE).result(
            timeout=DEADLINE_S
        )


@pytest.mark.parametrize("version", ["0.24.1", "0.39.0"])
def test_the_sdk_of_another_version_raises_its_own_error_with_the_way_out(
    server: Server, client: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch, version: str
):
    monkeypatch.setattr("tinker.lib.internal_client_holder.tinker_sdk_version", version)
    monkeypatch.setattr("tinker._client.__version__", version)
    with pytest.raises(tinker.BadRequestError, match=rf"tinker {version} is not served .* pip install"):
        server.client().create_sampling_client(base_model=BASE).result(timeout=DEADLINE_S)
    monkeypatch.undo()
    assert client.create_sampling_client(base_model=BASE).result(timeout=DEADLINE_S)


@pytest.mark.parametrize("version", ["0.24.1", "0.39.0", "1.0"])
def test_an_sdk_of_another_time_is_refused(server: Server, version: str):
    headers = {"X-API-Key": KEY, "X-Stainless-Package-Version": version}
    answer = requests.get(f"{server.url}/api/v1/get_server_capabilities", headers=headers, timeout=5)
    assert answer.status_code == 400
    assert "tinker>=0.25,<0.39" in answer.json()["detail"]


def test_another_host_name_is_refused(server: Server):
    answer = requests.get(f"{server.url}/api/v1/healthz", headers={"Host": "evil.example"}, timeout=5)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("create_session", "{", 400),
        ("create_model", '{"session_id": 1}', 400),
        ("asample", "{}", 400),
        ("forward_backward", "{}", 400),
        ("create_custom_loss", "{}", 400),
        ("copy_weights", "{}", 400),
        ("billing/usage/events", "", 400),
        ("sessions/search", "[]", 400),
        ("no_such_path", "{}", 404),
        ("retrieve_future", '{"request_id": "x"}', 410),
        ("session_heartbeat", '{"session_id": "x"}', 410),
    ],
)
def test_other_requests_are_refused_in_words(server: Server, path: str, body: str, status: int):
    answer = requests.post(f"{server.url}/api/v1/{path}", body, headers={"X-API-Key": KEY}, timeout=5)
    assert answer.status_code == status
    assert len(answer.json()["detail"]) > 20


@pytest.mark.parametrize(
    ("encoding", "body"), [("", b"\xff\xff"), ("zstd", b"not zstd"), ("gzip", b""), ("zstd", b"")]
)
def test_a_body_that_is_no_training_request_is_refused(server: Server, encoding: str, body: bytes):
    headers = {"X-API-Key": KEY, "Content-Type": "application/x-protobuf", "Content-Encoding": encoding}
    answer = requests.post(f"{server.url}/api/v1/forward_backward", body, headers=headers, timeout=5)
    assert answer.status_code in (400, 404)


def test_sparse_tensors_that_claim_too_much_memory_together_are_refused():
    message = pb.ForwardBackwardRequest(loss_fn="cross_entropy")
    for _ in range(3):
        weights = message.data.add().loss_fn_inputs["weights"]
        weights.dtype = pb.DTYPE_FLOAT32
        weights.shape.extend([1, MAX_SPARSE_CELLS // 2])
        weights.sparse_csr.crow_indices = bytes(16)
    with pytest.raises(BadInput, match="cells together"):
        training_request(message.SerializeToString(), list[int]().append)


def test_the_bytes_of_a_request_are_those_after_decoding():
    message = pb.ForwardBackwardRequest(loss_fn="cross_entropy")
    targets = message.data.add().loss_fn_inputs["target_tokens"]
    targets.dtype = pb.DTYPE_INT64
    targets.shape.extend([1, 100_000])
    targets.sparse_csr.crow_indices = bytes(16)
    taken = list[int]()
    body = message.SerializeToString()
    assert len(body) < 100
    assert training_request(body, taken.append).size == sum(taken) == 800_000
    text = bytes(5 << 20)
    taken.clear()
    assert decompressed(zstandard.compress(text), "zstd", taken.append) == text
    assert sum(taken) == len(text)


def test_a_faulty_request_does_not_fail_its_batch(
    client: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []

    def failing(transformer: Any, adapter: Any, requests: list[Any], *rest: Any) -> Any:
        sizes.append(len(requests))
        if any(list(one.prompt) == [13] for one in requests):
            raise RuntimeError("a kernel failed")
        return sample(transformer, adapter, requests, *rest)

    sampler = client.create_sampling_client(base_model=BASE).result()
    monkeypatch.setattr(engine, "sample", failing)
    futures = [sampler.sample(prompt([3 + number]), 1, params()) for number in range(20)]
    for number, future in enumerate(futures):
        if number == 10:
            with pytest.raises(tinker.RequestFailedError, match="a kernel failed"):
                future.result(timeout=DEADLINE_S)
        else:
            assert future.result(timeout=DEADLINE_S).sequences
    assert max(sizes) > 1


def test_each_failed_request_is_one_line_of_the_log(
    client: tinker.ServiceClient, server: Server, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(tinker.BadRequestError):
        client.create_lora_training_client("no/such").result(timeout=DEADLINE_S)
    with pytest.raises(tinker.RequestFailedError):
        twice_saved(client).result(timeout=DEADLINE_S)
    requests.post(
        f"{server.url}/api/v1/retrieve_future", '{"request_id": "x"}', headers={"X-API-Key": KEY}, timeout=5
    )
    lines = [one for one in caplog.records if one.name.startswith("envweave_gym_server")]
    assert [one.getMessage() for one in lines] == ["refused", "failed"]


def test_another_client_is_not_affected_by_errors(client: tinker.ServiceClient, server: Server):
    with connected(server) as other:
        ours, theirs = model(client), model(other)
        ours.forward_backward([row(TOKENS)], "cross_entropy").result()
        with pytest.raises(tinker.BadRequestError):
            theirs.forward_backward([row(TOKENS, weights=[1.0])], "cross_entropy").result(timeout=DEADLINE_S)
        assert (ours.optim_step(types.AdamParams()).result().metrics or {})["grad_norm"] > 0
        with pytest.raises(tinker.RequestFailedError, match="no step was made"):
            theirs.optim_step(types.AdamParams()).result(timeout=DEADLINE_S)
