"""The two ends of the sockets between the server and its engine, in a folder that nobody else may enter."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import zmq

from nextfit.errors import ConfigError
from nextfit.server import messages
from nextfit.server.messages import Command, Event

FLUSH_SECONDS = 2.0  # that the last messages may take when an end closes
_In = TypeVar("_In")


class Link(Generic[_In]):
    """One end: `send` from any thread, `receive` from one. Messages arrive in order and none is lost."""

    def __init__(
        self, folder: Path, outgoing: str, incoming: str, decode: Callable[[Any], _In], bind: bool
    ) -> None:
        self.folder = folder
        self._decode = decode
        self._lock = threading.Lock()  # a socket is used by one thread at a time
        self._context = zmq.Context()
        self._out = self._socket(zmq.PUSH, outgoing, bind)
        self._in = self._socket(zmq.PULL, incoming, bind)

    def _socket(self, kind: int, name: str, bind: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # a full queue would make one process wait for the other
        socket.linger = round(FLUSH_SECONDS * 1000)
        (socket.bind if bind else socket.connect)(f"ipc://{self.folder / name}")
        return socket

    def send(self, message: messages.Message, seconds: float = 0) -> bool:
        """Hand over, waiting up to `seconds` for the other end to be connected. False if it is not.

        Raises OverflowError for a number beyond 64 bits.
        """
        data = messages.encode(message)
        with self._lock:
            try:
                if seconds:
                    self._out.poll(round(seconds * 1000), zmq.POLLOUT)
                self._out.send(data, zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def receive(self, seconds: float = 0) -> list[_In]:
        """All that has come, waiting up to `seconds` for the first."""
        if seconds:
            self._in.poll(round(seconds * 1000))
        found = []
        try:
            while True:
                found.append(self._decode(self._in.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return found

    def unlist(self) -> None:
        """Remove the folder. Both ends stay connected, and whatever ends them leaves nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            self._context.destroy()
        self.unlist()


def listen() -> Link[Event]:
    """The server's end. Raises ConfigError if the system's folder for temporary files has too long a name."""
    folder = Path(tempfile.mkdtemp(prefix="nextfit-"))
    if len(str(folder / "commands")) > zmq.IPC_PATH_MAX_LEN:
        folder.rmdir()
        raise ConfigError(
            f"{folder}: a socket's path has at most {zmq.IPC_PATH_MAX_LEN} bytes; TMPDIR must be a shorter folder"
        )
    return Link(folder, "commands", "events", messages.decode_event, bind=True)


def connect(folder: Path) -> Link[Command]:
    """The engine's end."""
    return Link(folder, "events", "commands", messages.decode_command, bind=False)
