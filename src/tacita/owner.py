"""One owner for each run: the lock of its folder, and the token by which its ledger knows it.

The kernel keeps the lock (flock) with an open file. So a process that dies, be it by kill -9, holds nothing, and two
objects of one process exclude each other as two processes do. A copy of the folder has another lock, though, so every
charge carries the owner's token as well: whoever resumes a run brings a new one, and the ledger refuses older ones.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacita._check import PrivacyError

_FILE = "lock"
_HELD: weakref.WeakSet[Owner] = weakref.WeakSet()


class Owner:
    """Who may step a run, and write to its folder.

    Args:
        folder: The run's folder. None, for a run that writes nothing, needs no lock.

    Attributes:
        token: What this owner's charges carry.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one, other = Owner(Path(folder)), Owner(Path(folder))
        ...     _ = one.hold()
        ...     try:
        ...         _ = other.hold()
        ...     except PrivacyError as error:
        ...         print("in use" in str(error))
        True
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.token = folder, secrets.token_hex(8)
        self._unlock: weakref.finalize[Any, Owner] | None = None

    def hold(self) -> Owner:
        """Lock the folder, unless this object holds it already.

        Raises:
            PrivacyError: If somebody else holds it, or it cannot be locked.
        """
        if self.folder is None or (self._unlock is not None and self._unlock.alive):
            return self
        try:
            file = os.open(self.folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise PrivacyError(f"The run in {str(self.folder)!r} cannot be locked: {error.strerror}.") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        except BlockingIOError:
            holder = os.read(file, 20).decode("ascii", "replace")
            os.close(file)
            raise PrivacyError(
                f"The run in {str(self.folder)!r} is in use (by process {holder}): it has one owner at a time. Wait "
                "until that has ended, or pause it there; in a notebook, leave its loop or delete the older object."
            ) from None
        except OSError as error:
            os.close(file)
            raise PrivacyError(
                f"The run in {str(self.folder)!r} cannot be locked ({error.strerror}): two processes could step it at "
                "once. Put it on a local disk."
            ) from error
        self._unlock = weakref.finalize(self, os.close, file)
        _HELD.add(self)
        return self

    @contextmanager
    def opening(self) -> Iterator[Owner]:
        """Hold the folder, and let go of it at once if what is done meanwhile fails."""
        self.hold()
        try:
            yield self
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the folder. The run stays this owner's until somebody else resumes it."""
        if self._unlock is not None:
            self._unlock()


def _forked() -> None:
    """A child holds nothing, so that it does not keep the folder locked after its parent has died."""
    for owner in list(_HELD):
        owner.close()


os.register_at_fork(after_in_child=_forked)
