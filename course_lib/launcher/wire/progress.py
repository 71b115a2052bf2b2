"""Progress of a run, as a rank reports it.

A rank's output is sent in whole lines, so a rank cannot draw a bar. It sends a report on a separate line, and the
notebook's side of the launch draws the bar (`notebook.progress_bar`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MARK = "\x1e"  # starts a record in RFC 7464; nobody prints it by accident


@dataclass(frozen=True)
class Progress:
    """The number of updates done, the total, and the current loss and speed."""

    done: int
    total: int
    loss: float
    tokens_per_second: float
    mfu: float | None = None  # fraction of the devices' peak, if that is known

    @property
    def note(self) -> str:
        """The loss and the speed."""
        mfu = "" if self.mfu is None else f", MFU {self.mfu:.1%}"
        return f"loss {self.loss:.4f}, {self.tokens_per_second:,.0f} tokens/s{mfu}"

    def __str__(self) -> str:
        return f"{self.done} of {self.total} updates, {self.note}"


def parse_report(line: str) -> Progress | None:
    """Return the progress in a rank's line, or None if it is ordinary output. A learner may print anything."""
    if not line.startswith(MARK):
        return None
    try:
        progress = Progress(**json.loads(line[len(MARK) :]))
        str(progress)  # raises if a field has the wrong type
        return progress
    except (ValueError, TypeError):
        return None


def send(progress: Progress) -> None:
    """Report progress to the launch that started this rank."""
    print(MARK + json.dumps(asdict(progress)), flush=True)
