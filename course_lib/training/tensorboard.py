"""A run's log for TensorBoard, by PyTorch's own writer: `course train --log tensorboard:DIR`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from course_lib.training.log import LogError, Record

PREFIX = "tensorboard:"


def check_has_tensorboard() -> None:
    """Refuse where the package is missing that PyTorch's writer needs."""
    if importlib.util.find_spec("tensorboard") is None:
        raise LogError("--log tensorboard:DIR needs the package tensorboard: pip install tensorboard")


class TensorboardLog:
    """Writes the loss and the speed of every update. What an earlier run wrote of updates behind `after` is hidden."""

    def __init__(self, folder: str, after: int = 0) -> None:
        check_has_tensorboard()
        from torch.utils.tensorboard.writer import SummaryWriter

        try:
            self.writer = SummaryWriter(folder, purge_step=after + 1)
        except OSError as error:
            raise LogError(f"{folder} cannot be written ({error.strerror}): give --log another folder") from error

    def write(self, records: Iterable[Record]) -> None:
        """Append the records, and return when they have been handed to the file."""
        for record in records:
            for name in ("loss", "tokens_per_second", "mfu"):
                if (value := getattr(record, name)) is not None:
                    self.writer.add_scalar(name, value, record.update)
        self.writer.flush()
