"""Repeated and lost requests, killed servers: the same bits in the end, and no broken checkpoint."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
from flask import Response, jsonify, request
from safetensors.torch import load_file
from tinker import types
from tinker_server import (
    BASE,
    KEY,
    Server,
    connected,
    params,
    prompt,
    row,
    server_process,
    serving,
)

from envweave_gym_server.tinker import checkpoints
from envweave_gym_server.tinker.tinker_app import create_tinker_app

FAULTS = 60


class FaultyNetwork:
    """Refuses requests before they run, loses replies after they ran, and sends some requests twice."""

    def __init__(self, server: Server, seed: int = 0) -> None:
        self.refused = self.lost = self.repeated = 0
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._twin = create_tinker_app(server.service, KEY, ["*"]).test_client()
        server.app.before_request(self._before)
        server.app.after_request(self._after)

    @property
    def count(self) -> int:
        return self.refused + self.lost + self.repeated

    def _chance(self) -> float:
        with self._lock:
            # After a fault of asample the SDK waits for a second and more, after others it does not.
            rarely = 4 if request.path.endswith("asample") else 1
            return rarely * self._random.random() if self.count < FAULTS else 9.0

    def _before(self) -> Response | None:
        if self._chance() > 0.2:
            return None
        self.refused += 1
        return self._fault()

    def _after(self, response: Response) -> Response:
        chance = self._chance()
        if response.status_code != 200 or chance > 0.4:
            return response
        if chance < 0.2:
            self.lost += 1
            return self._fault()
        self.repeated += 1
        names = ("X-API-Key", "Content-Type")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        again = self._twin.open(request.path, method=request.method, data=request.get_data(), headers=headers)
        if request.path.endswith(("optim_step", "forward_backward", "asample")):
            assert again.get_json() == response.get_json()
        return response

    def _fault(self) -> Response:
        fault = jsonify(detail="injected")
        fault.status_code = 503
        fault.headers["Retry-After-Ms"] = "1"
        return fault


def sha256_of(server: Server, path: str) -> str:
    """The hash of a checkpoint's tensors, which are an adapter and, after a step, the moments of Adam."""
    _, tensors = server.service.checkpoints.load(path)
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest()


def small_training(server: Server, order: Callable[[list[int]], Any], steps: int = 3) -> str:
    """A loop of sampling and training, whose requests a client sends in some order; the hash of its end."""
    with connected(server) as client:
        training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
        for step in range(steps):
            sampler = training.save_weights_and_get_sampling_client().result()
            numbers = list(range(8))
            order(numbers)
            settings = [params(seed=100 * step + number, stop=[]) for number in range(8)]
            futures = {
                number: sampler.sample(prompt([3, 3 + number]), 2, settings[number]) for number in numbers
            }
            rows: list[types.Datum] = []
            for number in range(8):
                for sequence in futures[number].result(timeout=60).sequences:
                    tokens = [3, 3 + number, *sequence.tokens]
                    logprobs, advantage = [0.0, *(sequence.logprobs or [])], float(sum(tokens) % 3 - 1)
                    rows.append(row(tokens, logprobs=logprobs, advantages=[0.0, *[advantage] * 4]))
            order(rows)
            forward = training.forward_backward(rows, "importance_sampling")
            training.optim_step(types.AdamParams(learning_rate=0.01)).result(timeout=60)
            forward.result(timeout=60)
        return sha256_of(server, training.save_state("end").result(timeout=60).path)


def test_training_ends_with_the_same_bits_whatever_the_network_does(base_folder: Path, tmp_path: Path):
    hashes: list[str] = []
    for run, order in enumerate((lambda _: None, random.Random(1).shuffle, random.Random(2).shuffle)):
        with serving(base_folder, tmp_path / str(run), deterministic=True, threads=1) as server:
            network = FaultyNetwork(server) if run else None
            hashes.append(small_training(server, order))
            if network is not None:
                assert min(network.refused, network.lost, network.repeated) > 5
    assert len(set(hashes)) == 1


def test_only_deterministic_servers_repeat_the_noise_of_requests_without_seeds(
    base_folder: Path, tmp_path: Path
):
    def tokens(*, deterministic: bool) -> list[list[int]]:
        with (
            serving(base_folder, tmp_path / "noise", deterministic=deterministic, threads=1) as server,
            connected(server) as client,
        ):
            sampler = client.create_sampling_client(base_model=BASE).result()
            settings = params(seed=None, max_tokens=8, stop=[])
            return [one.tokens for one in sampler.sample(prompt([3]), 4, settings).result().sequences]

    assert tokens(deterministic=True) == tokens(deterministic=True)
    assert tokens(deterministic=False) != tokens(deterministic=False)


def test_a_request_that_was_done_long_ago_is_not_done_again(client: tinker.ServiceClient, server: Server):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    step = training.optim_step(types.AdamParams())
    step.result()
    training.optim_step(types.AdamParams()).result()
    for number in range(5):
        server.service.futures._drop(f"{training.model_id}#{number}")
    body = {"model_id": training.model_id, "seq_id": 1}
    client_of_app = create_tinker_app(server.service, KEY, ["*"]).test_client()
    answer = client_of_app.post("/api/v1/optim_step", json=body, headers={"X-API-Key": KEY})
    assert answer.status_code == 400
    assert "came after request 2" in answer.get_json()["detail"]
    assert server.service.models.find(training.model_id).steps == 2


@pytest.fixture
def post(server: Server) -> Callable[..., Any]:
    app = create_tinker_app(server.service, KEY, ["*"]).test_client()
    return lambda route, /, **body: app.post(f"/api/v1/{route}", json=body, headers={"X-API-Key": KEY})


def test_a_result_that_is_dropped_while_its_request_is_repeated_is_not_made_again(
    client: tinker.ServiceClient, server: Server, post: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    body = {"model_id": training.model_id, "seq_id": 7}
    request_id = post("optim_step", **body).get_json()["request_id"]
    futures, find = server.service.futures, server.service.futures.find
    futures.wait(request_id, 10)

    def find_and_drop(*given: Any) -> Any:
        found = find(*given)
        monkeypatch.undo()
        futures._drop(request_id)
        return found

    monkeypatch.setattr(futures, "find", find_and_drop)
    post("optim_step", **body)
    after = post("optim_step", **{**body, "seq_id": 8}).get_json()["request_id"]
    futures.wait(after, 10)
    assert server.service.models.find(training.model_id).steps == 2


def test_a_repeated_create_model_does_not_reset_a_trained_model(
    client: tinker.ServiceClient, server: Server, post: Callable[..., Any]
):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    training.optim_step(types.AdamParams()).result()
    model = server.service.models.find(training.model_id)
    server.service.futures._drop(f"{model.model_id}#0")
    body = {"session_id": model.session_id, "model_seq_id": 0, "base_model": BASE}
    request_id = post("create_model", **body).get_json()["request_id"]
    assert "exists" in post("retrieve_future", request_id=request_id).get_json()["error"]
    assert server.service.models.find(training.model_id) is model


def test_another_request_with_the_number_of_an_earlier_one_is_refused(
    client: tinker.ServiceClient, server: Server, post: Callable[..., Any]
):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    sampler = training.save_weights_and_get_sampling_client()
    sampler = sampler.result() if hasattr(sampler, "result") else sampler
    number = {"model_id": training.model_id, "seq_id": 9}
    assert post("save_weights", path="numbered", **number).status_code == 200
    sample = {
        "prompt": {"chunks": [{"tokens": [3]}]},
        "sampling_params": {"max_tokens": 2},
        "sampling_session_id": sampler._sampling_session_id,
        "seq_id": 9,
    }
    assert post("asample", **sample).status_code == 200
    answers = [
        post("optim_step", **number),
        post("save_weights", path="other", **number),
        post("asample", **{**sample, "num_samples": 2}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert all("another body" in answer.get_json()["detail"] for answer in answers)
    assert server.service.models.find(training.model_id).steps == 0


def test_a_repeated_request_for_a_sampler_gets_the_first_one_though_its_number_differs(
    client: tinker.ServiceClient, server: Server, post: Callable[..., Any]
):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    body = {"model_id": training.model_id, "seq_id": 5, "kind": "snapshot"}
    numbers = [
        post("save_weights_for_sampler", sampling_session_seq_id=n, **body).get_json() for n in (70, 71)
    ]
    assert numbers[0] == numbers[1]
    found = post("retrieve_future", request_id=numbers[0]["request_id"]).get_json()
    assert found["sampling_session_id"].endswith(":70")


# Checkpoints


@pytest.mark.slow
def test_a_server_killed_while_it_saves_starts_again_and_training_resumes(base_folder: Path, tmp_path: Path):
    rows = [row([3, 4, 5, 6, 7])]
    with server_process(base_folder, tmp_path) as first, connected(first) as client:
        training = client.create_lora_training_client(BASE, rank=32, seed=1).result()
        training.forward_backward(rows, "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=0.01)).result()
        path = training.save_state("step-1").result().path
        expected = training.forward(rows, "cross_entropy").result().metrics
        saves = [training.save_state("again", overwrite=True) for _ in range(200)]
        again = saves[5].result(timeout=20).path
        first.kill()
        assert not saves[-1].future().done()
        port = int(first.url.rpartition(":")[2])
        with server_process(base_folder, tmp_path, port=port) as second:
            with pytest.raises(tinker.NotFoundError, match="last checkpoint"):
                training.forward(rows, "cross_entropy").result(timeout=20)
            with connected(second) as after:
                for saved in (path, again):
                    resumed = after.create_training_client_from_state_with_optimizer(saved).result(timeout=20)
                    assert resumed.forward(rows, "cross_entropy").result().metrics == expected
        assert sorted(file.suffix for file in tmp_path.glob("*/*/again*")) == [".json", ".safetensors"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_save_that_is_cut_short_leaves_the_checkpoint_before_it(
    server: Server, client: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch, step: int
):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    path = training.save_state("kept").result().path
    before = sha256_of(server, path)
    flushes, flush = iter(range(1, 10)), checkpoints._flush

    def failing(file: Path) -> None:
        if next(flushes) == step:
            raise OSError("the disk is full")
        flush(file)

    monkeypatch.setattr(checkpoints, "_flush", failing)
    training.forward_backward([row([3, 4, 5])], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.1)).result()
    with pytest.raises(tinker.RequestFailedError, match="the disk is full"):
        training.save_state("kept", overwrite=True).result(timeout=10)
    monkeypatch.undo()
    if step < 3:  # the third flush is that of the folder, after the new checkpoint has its name
        assert sha256_of(server, path) == before
    left = sorted(
        (server.service.checkpoints.folder / path.split("/")[2].replace(":", "+")).glob("weights/*")
    )
    assert [file.suffix for file in left] == [".safetensors", ".json"]  # a full disk is not left fuller
    assert load_file(left[0])
