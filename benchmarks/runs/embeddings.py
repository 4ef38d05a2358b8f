"""Latency and throughput of the embedding service, eager and from graphs, at equal load.

``PYTHONPATH=src python3 -m benchmarks.runs.embeddings [--out FILE] [--seconds N]``. Starts
``examples/serve_embeddings.py`` in a process of its own, eager and with graphs in turn, twice.
Loads each in two ways: 16 clients that send the next request when they have the answer, and
requests at a fixed rate, whether answered or not (half of what eager execution reached). Each
request has 1 to 4 texts of 3 to 60 words. Runs on a GPU and on the emulated device, where times
mean nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lib.report import ROOT, about, arguments, write

CLIENTS = 16
WORDS = ("the", "a", "cat", "dog", "robot", "sees", "holds", "red", "box", "near", "of", "to")


def requests() -> list[bytes]:
    """The bodies that are sent, over and over."""
    drawn = random.Random(0)
    bodies = []
    for _ in range(400):
        lengths = drawn.choices((3, 5, 9, 20, 60), k=drawn.randint(1, 4))
        texts = [" ".join(drawn.choices(WORDS, k=length)) for length in lengths]
        bodies.append(json.dumps({"texts": texts}).encode())
    return bodies


@contextmanager
def service(*options: str) -> Iterator[int]:
    """A process of the service; gives its port."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples/serve_embeddings.py", "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the service did not start") from None
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=120)


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: Any = None
        self.writer: Any = None

    async def ask(self, body: bytes) -> int:
        """Send one request; its status. A connection that was idle for long may be closed."""
        try:
            return await self._ask(body)
        except (OSError, asyncio.IncompleteReadError):
            self.writer = None
            return await self._ask(body)

    async def _ask(self, body: bytes) -> int:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in answer.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        await self.reader.readexactly(length)
        return int(answer.split(b" ", 2)[1])


async def closed_loop(port: int, bodies: list[bytes], seconds: float) -> dict[str, Any]:
    """Each client sends its next request when it has the answer."""
    taken: list[float] = []
    failed = 0
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal failed
        one, turn = Client(port), number
        while time.perf_counter() < until:
            start = time.perf_counter()
            failed += await one.ask(bodies[turn % len(bodies)]) != 200
            taken.append(time.perf_counter() - start)
            turn += CLIENTS

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return summary(taken, failed, time.perf_counter() - start)


async def open_loop(port: int, bodies: list[bytes], seconds: float, rate: float) -> dict[str, Any]:
    """Requests at a fixed rate; the time of each counts from when it was due."""
    taken: list[float] = []
    idle: list[Client] = []
    failed = 0

    async def one(body: bytes, due: float) -> None:
        nonlocal failed
        client = idle.pop() if idle else Client(port)
        failed += await client.ask(body) != 200
        taken.append(time.perf_counter() - due)
        idle.append(client)

    start = time.perf_counter()
    tasks = []
    for number in range(int(seconds * rate)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(bodies[number % len(bodies)], due)))
    await asyncio.gather(*tasks)
    return summary(taken, failed, time.perf_counter() - start) | {"rate": round(rate, 1)}


def summary(taken: list[float], failed: int, seconds: float) -> dict[str, Any]:
    """What a load has measured."""
    ordered = sorted(1000 * one for one in taken)
    return {
        "p50_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
        "requests_per_s": round(len(taken) / seconds, 1),
        "requests": len(taken),
        "failed": failed,
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = arguments(__doc__, "embeddings.json")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load; default 10")
    options = parser.parse_args()
    bodies = requests()
    result: dict[str, Any] = {
        **about("embeddings", options.commit, "transformers", "starlette", "uvicorn"),
        "clients": CLIENTS,
        "closed loop": {"eager": [], "graphs": []},
        "open loop": {"eager": [], "graphs": []},
    }
    with tempfile.TemporaryDirectory() as folder:
        recipes = str(Path(folder) / "recipes.json")
        with service("--recipes", recipes) as port:  # for the recipes alone
            asyncio.run(closed_loop(port, bodies, options.seconds))
            for rate in (20.0, 60.0, 150.0):  # batches of all sizes
                asyncio.run(open_loop(port, bodies, options.seconds, rate))
        rate, warm = 0.0, ["--warm-tokens", "128"]
        for _ in range(2):
            for way, how in (("eager", ["--eager"]), ("graphs", [*warm, "--recipes", recipes])):
                with service(*how) as port:
                    asyncio.run(closed_loop(port, bodies, options.seconds / 2))  # warm
                    found = asyncio.run(closed_loop(port, bodies, options.seconds))
                    result["closed loop"][way].append(found)
                    rate = rate or found["requests_per_s"] / 2
                    steady = asyncio.run(open_loop(port, bodies, options.seconds, rate))
                    result["open loop"][way].append(steady)
                write(options.out, result)
                print(way, found, steady, flush=True)
    for load in ("closed loop", "open loop"):
        medians = {
            way: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for way, runs in result[load].items()
        }
        result[f"graphs / eager, {load}"] = {
            key: round(medians["graphs"][key] / medians["eager"][key], 3)
            for key in ("p50_ms", "p99_ms", "requests_per_s")
        }
        print(load, result[f"graphs / eager, {load}"])
    write(options.out, result)


if __name__ == "__main__":
    main()
