"""The engine's process as the server sees it: started, ended, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from nextfit.interpreter import command, greeting

DUMP_SIGNAL = signal.SIGUSR1  # an engine that gets it writes to stderr where its threads are
DUMP_SECONDS = 0.5  # that this may take


class EngineProcess:
    """Runs `module`'s `main` with `arguments`, the link's folder and our process id in a fresh interpreter.

    It must be started from a thread that lives as long as it: Linux ends it with that thread.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = command(module, *arguments)
        self._process: subprocess.Popen[str] | None = None

    def start(self, folder: Path) -> None:
        """Raises OSError if no process can be started."""
        self._process = subprocess.Popen(
            [*self._command, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C in a terminal is for the server, which lets answers end first
        )
        assert self._process.stdin is not None
        self._process.stdin.write(greeting())
        self._process.stdin.close()

    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return None
        if code >= 0:
            return f"its process ended with exit code {code}"
        hint = " (memory may have run out)" if code == -signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"

    def dump(self) -> None:
        """Have it write to stderr where its threads are, if it still can."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(DUMP_SIGNAL)
            time.sleep(DUMP_SECONDS)

    def kill(self) -> None:
        """End it at once; returns when its memory is free again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
