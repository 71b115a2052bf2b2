"""Run an answer on real ranks and write down what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from course_lib.launchers import CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck, launch
from course_lib.launchers.local import start_method

from .plain import decode, encode

SPAWNED = 10  # times the patience: such a rank imports in its work what a forked one has from its server
KINDS = {RankFailed: "raised", RankDied: "died", RanksStuck: "stuck", CollectivesDiffer: "differ"}


@dataclass(frozen=True)
class Outcome:
    """What an answer did in one case: `returned`, `raised`, `died`, `stuck`, `differ`, or it could not be run.

    `values[rank]` is plain data, as `encode` writes it. `shown` is the launcher's own account, for the learner.
    """

    kind: str
    values: tuple = ()
    error: str = ""
    text: str = ""
    cell: str = ""
    line: int = 0
    shown: str = ""

    def decoded(self) -> list[Any]:
        """The ranks' values, as tensors, numbers, text, lists and dicts."""
        return [decode(value) for value in self.values]

    @classmethod
    def of_record(cls, record: Any) -> Outcome:
        """The outcome that `asdict` wrote down. Raises `ValueError` if it did not write this."""
        if type(record) is not dict or record.keys() != asdict(cls("")).keys():
            raise ValueError("this is not an outcome")
        texts = [record[name] for name in ("kind", "error", "text", "cell", "shown")]
        if not (all(type(text) is str for text in texts) and type(record["line"]) is int):
            raise ValueError("this is not an outcome")
        outcome = cls(**{**record, "values": tuple(record["values"])})
        outcome.decoded()
        return outcome


def observe(drive: Callable, answer: Any, ranks: int, inputs: dict[str, Any], timeout: float) -> Outcome:
    """Call `drive(answer, **inputs)` on `ranks` ranks."""
    try:
        patience = timeout * (SPAWNED if start_method() == "spawn" else 1)
        run = launch(_on_rank, drive, answer, inputs, ranks=ranks, timeout=patience)
    except RankFailed as error:
        name, _, text = str(error).split("\n\n")[0].partition(" raised ")[2].partition(": ")
        frame = next((frame for frame in reversed(error.stack) if frame.file.startswith("<")), None)
        place = {} if frame is None else {"cell": frame.file, "line": frame.line}
        return Outcome("raised", error=name, text=text, shown=str(error), **place)
    except LaunchError as error:
        return Outcome(KINDS.get(type(error), "failed"), text=str(error).splitlines()[0], shown=str(error))
    return Outcome("returned", values=tuple(run))


def _on_rank(drive: Callable, answer: Any, inputs: dict[str, Any]) -> Any:
    return encode(drive(answer, **inputs))
