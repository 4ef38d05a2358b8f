"""An endpoint that Prometheus scrapes."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..errors import ArgumentError, ServerError, one_line
from ..stats import log
from .collector import Collector, prometheus

__all__ = ["Server", "serve"]


class _Thread(threading.Thread):
    """A thread that answers scrapes; captures know it by its module, and do not mind it."""


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds until a client that sends nothing is left

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Listener(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False  # two servers would share it, each with some of the scrapes

    def process_request(self, request: Any, client_address: Any) -> None:
        arguments = (request, client_address)
        _Thread(target=self.process_request_thread, args=arguments, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a client went away, or said nothing."""
        log(logging.DEBUG, "scrape_failed", because=one_line(sys.exc_info()[1] or OSError()))


class _Listener6(_Listener):
    address_family = socket.AF_INET6


class Server:
    """An endpoint made by :func:`serve`; as a context manager it closes at the end of the block.

    Attributes:
        addr: the address that it listens at.
        port: the port.
    """

    def __init__(self, listener: WSGIServer) -> None:
        self.addr, self.port = str(listener.server_address[0]), int(listener.server_port)
        self._listener, self._process = listener, os.getpid()
        self._thread = _Thread(target=listener.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where to scrape."""
        host = f"[{self.addr}]" if ":" in self.addr else self.addr
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop to listen; the port is free then. May be called again."""
        if os.getpid() == self._process and self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()  # in a child of fork(), where no thread serves, its copy

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gfxgraph metrics at {self.url}>"


def serve(port: int = 9100, addr: str = "127.0.0.1") -> Server:
    """Serve the metrics of this process over HTTP, on threads of its own, until it is closed.

    >>> server = gfxgraph.metrics.serve(port=9100)
    >>> server.close()

    Call it in each process that runs graphs, after ``fork()``: a child has no thread that serves.
    It exports the metrics of gfxgraph alone; for others of yours, register a :class:`Collector`.

    Args:
        port: where to listen, 0 to 65535; 0 takes one that is free. Default 9100.
        addr: the address to listen at. Default ``"127.0.0.1"``, this machine alone; all others
            too: ``"0.0.0.0"``, which anybody who reaches the port can read.

    Raises:
        ArgumentError: ``port`` or ``addr`` is not of that kind.
        MissingPackageError: prometheus-client is not installed.
        ServerError: the port is in use, or the address is none of this machine.
    """
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise ArgumentError(f"serve(port={port!r}): expected a whole number from 0 to 65535.")
    if not isinstance(addr, str) or not addr:
        raise ArgumentError(f"serve(addr={addr!r}): expected an address such as '127.0.0.1'.")
    client = prometheus()
    registry = client.CollectorRegistry()
    registry.register(Collector())
    kind = _Listener6 if ":" in addr else _Listener
    try:
        listener = make_server(
            addr, port, client.make_wsgi_app(registry), kind, handler_class=_Handler
        )
    except (OSError, UnicodeError) as error:  # a name that no encoding of host names takes
        raise ServerError(
            f"serve(port={port}, addr={addr!r}): it cannot listen there ({error}). Is the port in "
            "use, by another worker perhaps? Give each process a port of its own, or port=0 for "
            "one that is free."
        ) from error
    return Server(listener)
