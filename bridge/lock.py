"""One process on one data directory: the lock that a second one meets."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from bridge.errors import StoreUnusable

LOCK_FILE = "steadybot.lock"


class DirectoryLock:
    """A context manager; makes the directory if it is not there. The lock ends with the process, however it ends.

    Raises StoreUnusable: the directory is in use, can't be made or can't be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        path = self._directory / LOCK_FILE
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise StoreUnusable(
                f"data_dir {self._directory}: can't be used ({error.strerror}); choose another, or mend its "
                "permissions"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                file.seek(0)
                holder = file.read().strip() or "?"
            raise StoreUnusable(
                f"data_dir {self._directory}: in use by another steadybot (process {holder}); stop it, or choose "
                "another data_dir"
            ) from error
        except OSError as error:  # some network file systems have no locks
            file.close()
            raise StoreUnusable(
                f"data_dir {self._directory}: can't be locked ({error.strerror}); choose one on a local disk"
            ) from error
        self._file = file
        # Only for the other's error line; a full disk must not keep us from telling what is wrong further on.
        with suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
