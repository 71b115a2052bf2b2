"""Messages between machines that share a folder: a file for each speaker, to which that speaker alone appends.

NFS shows what a file has become to whoever opens it after the writer has closed it. A new *name* in a folder it may
hide for a minute, behind its cache of the folder. So both sides open the files anew each time, by names that exist
before anybody looks for them, and nothing is ever renamed. A message whose end is not there yet is left for later.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

SIZE_BYTES = 8


class MessageFile:
    """What one side says, in order. `append` is for that side, `read` for the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def create(self) -> None:
        self.path.touch(mode=0o600)

    def append(self, *messages: Any) -> None:
        """Say something; when this returns, the other side can read it."""
        packed = [pickle.dumps(message) for message in messages]
        with self.path.open("ab") as file:
            file.write(b"".join(len(data).to_bytes(SIZE_BYTES, "big") + data for data in packed))

    def read(self) -> list[Any]:
        """What was said since the last time."""
        # Unpickling can run code. The folder is the user's own, and closed to others (0700): whoever can write
        # there is the user, or root.
        if not self.path.exists():
            return []
        messages = []
        with self.path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while self._position + SIZE_BYTES <= end:
                file.seek(self._position)
                size = int.from_bytes(file.read(SIZE_BYTES), "big")
                if self._position + SIZE_BYTES + size > end:
                    break
                messages.append(pickle.loads(file.read(size)))
                self._position += SIZE_BYTES + size
        return messages
