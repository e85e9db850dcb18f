"""PeerWatch: ends a data-parallel process when another one has died.

A process that waits for a dead one in a collective operation may wait for the whole timeout of the process group:
NCCL does not notice, and gloo's connections stay open in forked workers of the dead process. Each process
therefore keeps a TCP connection to the main process, which the operating system closes when either of them dies.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time

import torch.distributed as dist

_FINISHED = b"."
_GRACE_SECONDS = 5.0
# Without traffic, a lost machine is noticed after IDLE + COUNT * INTERVAL seconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 5}


class PeerWatch:
    """The connections of this process: of the main process to all others, of the others to the main process.

    Args:
        rank: Rank of this process.
        connections: A connected socket per rank of another process.
    """

    def __init__(self, rank: int, connections: dict[int, socket.socket]) -> None:
        self._rank = rank
        self._connections = connections
        for connection in connections.values():
            _keep_alive(connection)
        # A forked worker would hold the connection open after this process has died.
        os.register_at_fork(after_in_child=self._close)
        atexit.register(self._finish)
        threading.Thread(target=self._watch, name="amago-peer-watch", daemon=True).start()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    message = _receive(self._connections[key.data])
                    if message != _FINISHED:
                        self._end(int(message) if message else key.data)
                    selector.unregister(key.fileobj)

    def _end(self, dead_rank: int) -> None:
        """Tells the other processes and ends this one; its main thread has some seconds to end by itself."""
        print(
            f"amago: rank {dead_rank} of this run ended before the others, by an error or a signal; see its own "
            f"output. Rank {self._rank} ends too.",
            file=sys.stderr,
            flush=True,
        )
        self._send(str(dead_rank).encode())
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    def _finish(self) -> None:
        """At the end of the process; an exception that nobody handled is no regular end."""
        is_regular = not hasattr(sys, "last_value")
        if is_regular:
            self._send(_FINISHED)
        else:
            for connection in self._connections.values():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        # Its threads should end before Python is finalized.
        if dist.is_initialized() and (is_regular or dist.get_backend() == "gloo"):
            dist.destroy_process_group()

    def _send(self, message: bytes) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it has ended too
                connection.sendall(message)

    def _close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class Meeting:
    """The main process's server, where the others connect.

    Attributes:
        port: TCP port.
    """

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.port: int = self._server.getsockname()[1]

    def accept(self, ranks: set[int], secret: str, timeout: float) -> dict[int, socket.socket]:
        """Waits for the connections of `ranks`, which introduce themselves with the secret of the run."""
        connections: dict[int, socket.socket] = {}
        self._server.settimeout(timeout)
        with self._server:
            while connections.keys() != ranks:
                connection, _ = self._server.accept()
                connection.settimeout(timeout)
                word, _, rank = _receive(connection, len(secret) + 16).decode(errors="replace").partition(" ")
                if word == secret and rank.isdecimal():
                    connection.settimeout(None)
                    connections[int(rank)] = connection
                else:
                    connection.close()
        return connections


def connect(host: str, port: int, rank: int, secret: str, timeout: float) -> socket.socket:
    """Connects a process to the main process."""
    connection = socket.create_connection((host, port), timeout)
    connection.sendall(f"{secret} {rank}".encode())
    connection.settimeout(None)
    return connection


def _receive(connection: socket.socket, limit: int = 16) -> bytes:
    """What the other process sent; nothing if it died."""
    try:
        return connection.recv(limit)
    except OSError:
        return b""


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
