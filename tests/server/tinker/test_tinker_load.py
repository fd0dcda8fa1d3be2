"""Many requests and several clients at once, and what stays in memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import tinker
import zstandard
from tinker import types
from tinker_server import BASE, KEY, Server, connected, params, prompt, row, serving

from envweave_gym.training.tinker.waiting import in_thread
from envweave_gym_server.tinker import training_models
from envweave_gym_server.tinker.body_limits import SMALL_BODY, ByteBudget, limit_bodies
from envweave_gym_server.tinker.engine import Operation
from envweave_gym_server.tinker.futures import FutureLimits, Reply, json_reply
from envweave_gym_server.tinker.request_bodies import LoraConfig
from envweave_gym_server.tinker.tinker_app import create_tinker_app
from envweave_gym_server.tinker.tinker_service import TinkerService
from envweave_gym_server.tinker.training_models import TrainingModel

TOKENS = [3, 4, 5, 6, 7]


def test_200_samples_at_once_are_few_batches(client: tinker.ServiceClient, server: Server):
    sampler = client.create_sampling_client(base_model=BASE).result()
    began = time.monotonic()
    futures = [sampler.sample(prompt([3]), 1, params(max_tokens=1, seed=seed)) for seed in range(200)]
    assert all(len(future.result(timeout=20).sequences[0].tokens) == 1 for future in futures)
    assert time.monotonic() - began < 10  # below one second on a machine with nothing else to do


def test_2500_rows_in_one_call_give_2500_outputs_in_order(client: tinker.ServiceClient):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    rows = [row([3 + number % 5, 4, 5, 6][: 3 + number % 2]) for number in range(2500)]
    output = training.forward_backward(rows, "cross_entropy").result(timeout=60)
    assert [one["logprobs"].shape for one in output.loss_fn_outputs] == [
        [2 + number % 2] for number in range(2500)
    ]
    first = [one["logprobs"].tolist() for one in output.loss_fn_outputs[:10]]
    assert [one["logprobs"].tolist() for one in output.loss_fn_outputs[-10:]] == first


def test_futures_stay_few_after_600_requests(base_folder: Path, tmp_path: Path):
    limits = FutureLimits(fetched=100)
    with serving(base_folder, tmp_path, threads=1, futures=limits) as server, connected(server) as client:
        sampler = client.create_sampling_client(base_model=BASE).result()
        for _ in range(4):
            futures = [sampler.sample(prompt([3]), 1, params(max_tokens=1)) for _ in range(150)]
            for future in futures:
                future.result(timeout=60)
        assert len(server.service.futures) <= limits.fetched


def test_a_finished_session_leaves_nothing_in_memory(server: Server):
    service = server.service
    before = (len(service.models), len(service.samplers), len(service.futures), len(service.records))
    with connected(server) as client:
        training = client.create_lora_training_client(BASE, rank=4).result()
        sampler = training.save_weights_and_get_sampling_client().result()
        sampler._record_stability_info = True
        sampler.sample(prompt([3]), 1, params()).result()
        assert (len(service.models), len(service.samplers)) == (before[0] + 1, before[1] + 1)
        assert len(service.records) == before[3] + 1
    after = (len(service.models), len(service.samplers), len(service.futures), len(service.records))
    assert after == before
    with pytest.raises((tinker.NotFoundError, RuntimeError)):
        sampler.sample(prompt([3]), 1, params()).result(timeout=5)


@pytest.mark.parametrize("makes", ["create_model", "load_weights", "save_weights_for_sampler"])
def test_a_session_that_ends_during_a_request_leaves_nothing_in_memory(
    server: Server, monkeypatch: pytest.MonkeyPatch, makes: str
):
    service = server.service
    with connected(server) as client:
        training = client.create_lora_training_client(BASE, rank=4).result()
        path = training.save_state("kept").result().path
        before = len(service.models), len(service.samplers)
        session = service.sessions.open(None, None).session_id
        table = service.samplers if makes == "save_weights_for_sampler" else service.models
        add = table.add

        def end_and_add(made: Any) -> Any:
            service.end_session(session, {"type": "client_finished"})
            return add(made)

        call = {"headers": {"X-API-Key": KEY}, "timeout": 5}
        if makes == "save_weights_for_sampler":
            model_id = f"{session}:train:0"
            body = {"model_id": model_id, "sampling_session_seq_id": 0, "seq_id": 1}
            base = service.bases[BASE]
            service.models.add(TrainingModel(model_id, base, LoraConfig(4)))
        else:
            body = {"session_id": session, "model_seq_id": 0, "base_model": BASE}
            body |= {"path": path, "optimizer": True} if makes == "load_weights" else {}
        monkeypatch.setattr(table, "add", end_and_add)
        requests.post(f"{server.url}/api/v1/{makes}", json=body, **call)
        training.forward([row(TOKENS)], "cross_entropy").result()
        assert (len(service.models), len(service.samplers)) == before


def test_a_silent_session_ends_and_a_heard_one_does_not(base_folder: Path, tmp_path: Path):
    with serving(base_folder, tmp_path, silent_s=60.0) as server, connected(server) as client:
        training = client.create_lora_training_client(BASE, rank=4).result()
        server.service.sweep()
        assert len(server.service.models) == 1
        session = server.service.sessions.find(training.model_id.split(":")[0])
        assert session is not None
        session.last_heard -= 61
        server.service.sweep()
        assert len(server.service.models) == 0
        answer = requests.post(
            f"{server.url}/api/v1/session_heartbeat",
            json={"session_id": session.session_id},
            headers={"X-API-Key": KEY},
            timeout=5,
        )
        assert answer.status_code == 410


def test_two_clients_train_adapters_of_their_own_at_once(server: Server):
    def losses_of(client: tinker.ServiceClient, seed: int) -> list[float]:
        training = client.create_lora_training_client(BASE, rank=4, seed=seed).result()
        losses: list[float] = []
        for _ in range(5):
            forward = training.forward_backward([row([seed, *TOKENS])], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=0.01)).result()
            losses.append(forward.result().metrics["loss:sum"])
        return losses

    with connected(server) as first, connected(server) as second:
        alone = losses_of(first, 7)
        together: dict[int, list[float]] = {}
        threads = [
            threading.Thread(target=lambda one=one, seed=seed: together.update({seed: losses_of(one, seed)}))
            for one, seed in ((first, 7), (second, 8))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert together[7] == pytest.approx(alone, rel=1e-5)
    assert together[8] != pytest.approx(alone, rel=1e-2)


def test_a_sample_may_pass_a_long_training_call(client: tinker.ServiceClient, server: Server):
    sampler = client.create_sampling_client(base_model=BASE).result()
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    forward = training.forward_backward([row(TOKENS)] * 2500, "cross_entropy")
    samples = [sampler.sample(prompt([3]), 1, params(seed=seed)) for seed in range(20)]
    assert all(future.result(timeout=30).sequences for future in samples)
    assert forward.result(timeout=30).metrics


@contextlib.contextmanager
def held_engine(service: TinkerService) -> Iterator[threading.Event]:
    """Keep the engine busy until the yielded event is set, at the latest at the end of the block."""
    began, free = threading.Event(), threading.Event()

    def hold() -> Reply:
        began.set()
        free.wait(30)
        return json_reply()

    future, _ = service.futures.add("held", "none")
    service.engine.submit(Operation(future, hold))
    assert began.wait(10)
    try:
        yield free
    finally:
        free.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_body_over_the_limit_is_refused_after_it_was_read(
    client: tinker.ServiceClient, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(server.app.config, "MAX_CONTENT_LENGTH", 1 << 20)
    sampler = client.create_sampling_client(base_model=BASE).result()
    with pytest.raises(
        tinker.BadRequestError, match=r"bytes, and this server reads 1048576 at most; send fewer"
    ):
        sampler.sample(prompt([3] * 2_000_000), 1, params()).result(timeout=20)
    chunks = (b"x" * 100_000 for _ in range(20))  # a body without a length before it
    answer = requests.post(
        f"{server.url}/api/v1/create_session", chunks, headers={"X-API-Key": KEY}, timeout=20
    )
    assert answer.status_code == 400
    assert sampler.sample(prompt([3]), 1, params()).result(timeout=20).sequences


def test_large_bodies_wait_for_each_other_and_small_ones_do_not(base_folder: Path, tmp_path: Path):
    with serving(base_folder, tmp_path, threads=1) as server:
        app, budget = create_tinker_app(server.service, KEY, ["*"]), ByteBudget(1000)
        app.before_request_funcs[None].pop()  # the limit of the server itself
        limit_bodies(app, budget)
        asks = app.test_client()
        assert budget.take(900)
        large: dict[str, Any] = {"data": b"x" * (SMALL_BODY + 1), "headers": {"X-API-Key": KEY}}
        answer = asks.post("/api/v1/create_session", **large)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert asks.post("/api/v1/create_session", headers={"X-API-Key": KEY}).status_code == 200
        chunked: dict[str, Any] = {
            "data": large["data"] * 2,
            "headers": {**large["headers"], "Transfer-Encoding": "chunked"},
        }
        chunked["environ_overrides"] = {"wsgi.input_terminated": True}
        assert asks.post("/api/v1/create_session", **chunked).status_code == 429
        packed = {"data": zstandard.compress(large["data"]), "content_type": "application/x-protobuf"}
        packed["headers"] = {**large["headers"], "Content-Encoding": "zstd"}
        assert asks.post("/api/v1/forward_backward", **packed).status_code == 429
        assert budget.used == 900
        budget.give_back(900)
        assert asks.post("/api/v1/create_session", **large).status_code == 400  # read, and no JSON
        assert budget.used == 0


def test_a_client_that_sends_more_than_may_wait_is_slowed_down_and_others_are_not(
    base_folder: Path, tmp_path: Path
):
    limits = FutureLimits(pending_bytes=20_000)
    with (
        serving(base_folder, tmp_path, threads=1, futures=limits) as server,
        connected(server) as greedy,
        connected(server) as modest,
    ):
        futures = server.service.futures
        training = greedy.create_lora_training_client(BASE, rank=4, seed=1).result()
        sampler = modest.create_sampling_client(base_model=BASE).result()
        with held_engine(server.service) as free:
            passes = [training.forward([row(TOKENS)] * 30, "cross_entropy") for _ in range(10)]
            until(lambda: futures.waiting_bytes > 5000)
            sampled = sampler.sample(prompt([3]), 1, params())
            until(lambda: futures.find(f"{sampler._sampling_session_id}#0") is not None)
            assert futures.waiting_bytes <= 10_000 + 1000  # half of the limit, and the sample
            assert not sampled.future().done()
            free.set()
        assert sampled.result(timeout=30).sequences
        assert len({one.result(timeout=60).metrics["loss:sum"] for one in passes}) == 1
        assert futures.waiting_bytes == 0


def test_a_session_that_ends_leaves_no_rows_in_the_queue(base_folder: Path, tmp_path: Path):
    with serving(base_folder, tmp_path, threads=1) as server:
        service = server.service
        with held_engine(service), connected(server) as client:
            sampler = client.create_sampling_client(base_model=BASE).result()
            sampler.sample(prompt([3]), 1, params())
            until(lambda: len(service.engine._queue) == 1)
            assert service.futures.waiting_bytes > 0
            service.end_session(sampler._sampling_session_id.split(":")[0], {"type": "client_finished"})
            assert (len(service.engine._queue), service.futures.waiting_bytes) == (0, 0)


def test_models_over_the_limit_are_refused_though_they_are_asked_for_at_once(
    client: tinker.ServiceClient, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training_models, "MAX_MODELS", len(server.service.models) + 2)
    with held_engine(server.service):
        wanted = [
            in_thread(lambda: client.create_lora_training_client(BASE, rank=4).result()) for _ in range(4)
        ]
        until(lambda: len(server.service.engine._queue) == 4)
    results = [one.exception(timeout=20) for one in wanted]
    assert [error is None for error in results].count(True) == 2
    refused = next(error for error in results if error is not None)
    assert isinstance(refused, tinker.TinkerError)
    assert "models are in training here" in str(refused)


def test_an_abandoned_sample_is_not_run(client: tinker.ServiceClient, server: Server):
    service = server.service
    with held_engine(service):
        sampler = client.create_sampling_client(base_model=BASE).result()
        waiting = sampler.sample(prompt([3]), 1, params(seed=5))
        request_id = f"{sampler._sampling_session_id}#0"
        until(lambda: service.futures.find(request_id) is not None)
        service.futures.cancel(request_id)
    with pytest.raises(tinker.RequestFailedError, match="cancelled"):
        waiting.result(timeout=10)
    service.futures._drop("held")
