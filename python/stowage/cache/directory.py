"""Where Stowage keeps things between runs: measured costs, plans, and the runtime built for each torch.

    $STOWAGE_CACHE, else $XDG_CACHE_HOME/stowage, else ~/.cache/stowage        0700, as are the directories in it
        costs-*.json    costs.py
        plans/          plan_cache.py
        runtime/        _torch/runtime_build.py

What lies there is read, and code from there is run, so nobody else may write to it. A directory is opened once and then
looked at through its descriptor: owner and mode are of what is used, whatever happens to the path meanwhile. In it no
link is followed, nothing but a plain file of the user's own is read, and never more of it than the reader asks for.
SECURITY.md says what is promised."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from stowage.errors import Error

_STALE_S = 3600  # half-written files of processes that were killed
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # of a FIFO, open() must not wait for the other end


class Refused(Error):
    """Somebody else may write to a directory or file of the cache, or owns it. The message names it and says what to
    do."""


class NoEntry(ValueError):
    """What has the name of an entry is none: no plain file, of another user, or too large."""


class Folder:
    """A directory of the cache that is the user's own, open."""

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self.descriptor = descriptor

    def read(self, name: str, most_bytes: int) -> bytes:
        """All of a file. FileNotFoundError where there is none; NoEntry where what has that name is not to be read."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(most_bytes + 1) if size <= most_bytes else b""
        if size > most_bytes or len(content) > most_bytes:
            raise NoEntry(f"it is larger than {most_bytes} bytes")
        return content

    def open(self, name: str, flags: int) -> int:
        """The descriptor of a plain file of the user's own that nobody else may write to; 0600 where it is made."""
        try:
            descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=self.descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:  # a link, a directory, a FIFO without a reader, a file that may not be read
            raise NoEntry(f"it cannot be opened as a plain file: {error.strerror}") from None
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in _trusted_users() or info.st_mode & _OTHERS_WRITE:
            os.close(descriptor)
            raise NoEntry(
                "it is no plain file" if not stat.S_ISREG(info.st_mode) else "another user owns it or may write to it"
            )
        return descriptor

    def replace(self, name: str, content: bytes) -> bool:
        """Writes a file as a whole: another process sees the old one or the new one, and so does the next one after a
        kill. False where that cannot be done."""
        temporary = f".{name}.{os.getpid()}-{secrets.token_hex(4)}"
        try:
            handle = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor
            )
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            try:
                self._rename(temporary, name)
            except IsADirectoryError:  # so it is no entry
                self._rename(name, f"{temporary}-directory")
                self._rename(temporary, name)
                shutil.rmtree(f"/proc/self/fd/{self.descriptor}/{temporary}-directory", ignore_errors=True)
        except OSError:
            self.remove(temporary)
            return False
        return True

    def _rename(self, name: str, to: str) -> None:
        os.replace(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def entries(self) -> list[tuple[str, os.stat_result]]:
        """Names and states of what is there; of links, their own."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.descriptor):
                with contextlib.suppress(OSError):  # another process tidies up too
                    found.append((name, os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)))
        return found

    def used_now(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self.descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def tidy(self) -> None:
        """Removes what processes that were killed have left half written."""
        for name, info in self.entries():
            if name.startswith(".") and stat.S_ISREG(info.st_mode) and info.st_mtime < time.time() - _STALE_S:
                self.remove(name)


def cache_directory() -> Path:
    named = os.environ.get("STOWAGE_CACHE", "")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "stowage"


@contextlib.contextmanager
def opened(top: Path, *below: str, make: bool = False) -> Iterator[Folder]:
    """The directory ``top``/below, open while the block runs; ``make``: made, 0700, where it is missing.

    Refused where a directory from ``top`` on is not the user's own; OSError where it cannot be had. ``top`` may be a
    link of the user's choice, what is below it may not.
    """
    path, descriptor = top, -1
    try:
        for name in ("", *below):
            path = path / name
            if make:
                _make(path if descriptor < 0 else Path(name), descriptor)
            above = descriptor
            if above < 0:
                descriptor = os.open(path, _DIRECTORY)
            else:
                try:
                    descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
                except NotADirectoryError:  # a link, too
                    raise Refused(f"'{path}' is a link or a file where a directory should be: remove it") from None
                os.close(above)
            _refuse_unless_own(os.fstat(descriptor), path)
        yield Folder(path, descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _make(path: Path, above: int) -> None:
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700, dir_fd=above if above >= 0 else None)
        except FileNotFoundError:
            _make(path.parent, above)
            os.mkdir(path, 0o700)


def _refuse_unless_own(info: os.stat_result, path: Path) -> None:
    if info.st_uid not in _trusted_users():
        raise Refused(
            f"'{path}' belongs to user {info.st_uid}, and what is kept there is trusted: name a directory of your own in STOWAGE_CACHE"
        )
    if info.st_mode & _OTHERS_WRITE:
        raise Refused(
            f"'{path}' can be written to by others (mode {stat.S_IMODE(info.st_mode):04o}), and what is kept there is trusted: "
            f"remove it, or run `chmod go-w '{path}'` if all in it is yours; or name another directory in STOWAGE_CACHE"
        )


def _trusted_users() -> tuple[int, int]:
    return os.geteuid(), 0  # root needs no cache to do what it wants


__all__ = ["Folder", "NoEntry", "Refused", "cache_directory", "opened"]
