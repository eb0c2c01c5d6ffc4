"""The HTTP server of the page for Prometheus: few readers at a time, and none that keeps a thread by saying nothing."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

#: Connections at a time: the oldest gives way to a new one. A scrape takes milliseconds.
MOST_READERS = 32
#: A connection that sends or takes nothing for so long is closed, seconds.
PATIENCE = 10.0


class Handler(WSGIRequestHandler):
    """Logs nothing, and waits only so long for the next byte."""

    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class PageServer(ThreadingMixIn, WSGIServer):
    """Serves one WSGI application on an address; at most `MOST_READERS` connections are open.

    Raises:
        OSError: the address is taken or not ours.
        ValueError: the host is no name that can be looked up.
        OverflowError: there is no such port.
    """

    daemon_threads = True
    request_queue_size = 4 * MOST_READERS  # five, the default, make readers who come together wait for seconds

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = found[0][0], found[0][4]
        self._open: dict[socket.socket, None] = {}  # in the order in which they came
        self._lock = threading.Lock()
        super().__init__((str(address[0]), port), Handler)
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a reader in a thread of its own; the oldest one has to go where there are too many."""
        with self._lock:
            ended = list(self._open)[: max(0, len(self._open) + 1 - MOST_READERS)]
            self._open = {one: None for one in self._open if one not in ended} | {request: None}
        for one in ended:
            _end(one)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection whose thread is done with it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of faults, but not of readers who went away, said nothing, or were sent away."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Take no more readers and send away those who are there."""
        super().server_close()
        with self._lock:
            left, self._open = list(self._open), {}
        for one in left:
            _end(one)


def _end(connection: socket.socket) -> None:
    """Let the thread that waits for this connection wake up: it closes it then."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already
