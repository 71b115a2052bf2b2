"""Run an answer on real ranks and write down what happened."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.launchers import CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck, launch
from course_lib.launchers.diagnosis.stacks import describe_stack, own_frames
from course_lib.launchers.local import start_method
from course_lib.launchers.process.patience import Patience
from course_lib.launchers.run import Run

from .keeper import Keeper, Packed, Parcel, PerRank, hide_memory
from .plain import decode, encode

SPAWNED = 10  # times the patience: such a rank imports in its work what a forked one has from its server
KINDS = {RankFailed: "raised", RankDied: "died", RanksStuck: "stuck", CollectivesDiffer: "differ"}
Inputs = dict[str, Any] | PerRank  # of `drive`
Call = tuple[Any, Inputs]  # with an answer
Setting = tuple[int, Inputs]  # on a number of ranks
DOING = ("waiting", "running", "computing", "returned", "stopped")


@dataclass(frozen=True)
class Outcome:
    """What an answer did in one case: `returned`, `raised`, `died`, `stuck`, `differ`, or it could not be run.

    `stuck` are ranks that wait for each other. `slow` is what nothing but a clock has stopped.

    `values[rank]` is plain data, as `encode` writes it. `shown` is the launcher's own account, for the learner.
    `states[rank]` says what a rank did when all were stuck: doing, in which call, with or for whom.
    """

    kind: str
    values: tuple = ()
    error: str = ""
    text: str = ""
    cell: str = ""
    line: int = 0
    shown: str = ""
    states: tuple = ()

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
        states = tuple(map(tuple, record["states"]))
        if not all(len(state) == 3 and state[0] in DOING and all(type(t) is str for t in state) for state in states):
            raise ValueError("this is not an outcome")
        outcome = cls(**{**record, "values": tuple(record["values"]), "states": states})
        outcome.decoded()
        return outcome


def observe(
    drive: Callable,
    answer: Any,
    ranks: int,
    inputs: Inputs,
    timeout: float,
    *,
    quiet: bool = False,
    keeper: Keeper | None = None,
) -> Outcome:
    """Call `drive(answer, **inputs)` on `ranks` ranks. `quiet` does not show what they print."""
    try:
        run = _launch(drive, [(answer, inputs)], ranks, timeout, quiet, keeper=keeper)
    except RankFailed as error:
        name, _, text = str(error).split("\n\n")[0].partition(" raised ")[2].partition(": ")
        frame = next((frame for frame in reversed(error.stack) if frame.file.startswith("<")), None)
        place = {} if frame is None else {"cell": frame.file, "line": frame.line}
        return Outcome("raised", error=name, text=text, shown=_account(error, name, text, ranks), **place)
    except LaunchError as error:
        states = sorted(error.where.items()) if isinstance(error, RanksStuck) else []
        return Outcome(
            _kind(error),
            text=str(error).splitlines()[0],
            shown=str(error),
            states=tuple((state.doing, state.collective or "", state.whom) for _, state in states),
        )
    return Outcome("returned", values=tuple(value[0] for value in run))


def _kind(error: LaunchError) -> str:
    """Ranks that wait for each other are `stuck`; one that is at work, or has nobody to wait for, is `slow`."""
    if isinstance(error, RanksStuck) and not error.proven:
        doing = [state.doing for state in error.where.values()]
        all_wait = len(doing) > 1 and "waiting" in doing and set(doing) <= {"waiting", "returned"}
        return "stuck" if all_wait else "slow"
    return KINDS.get(type(error), "failed")


def observe_many(
    drive: Callable,
    calls: Sequence[Call],
    ranks: int,
    timeout: float,
    *,
    catch: bool = False,
    brief: bool = False,
    keeper: Keeper | None = None,
) -> list[Outcome]:
    """Call `drive(answer, **inputs)` for each of these, one after the other, in one launch: much quicker than many.

    They come in order, and end before the first that did not return: what became of it, only a launch of its own can
    tell. `catch` goes on after one that raises, if all ranks come out of it. `brief` is content with the error's name
    where one was raised, and needs no launch of its own for that.
    """
    with tempfile.TemporaryDirectory() as aside:
        with contextlib.suppress(LaunchError):
            _launch(
                drive, calls, ranks, timeout + 0.2 * len(calls), quiet=True, catch=catch, aside=aside, keeper=keeper
            )
        written = [_whole_lines(Path(aside, str(rank))) for rank in range(ranks)]
    outcomes = [_of_values(list(map(json.loads, values))) for values in zip(*written, strict=False)]
    if not catch:
        outcomes = [outcome for outcome in outcomes if outcome.kind == "returned"]
        last = [json.loads(lines[len(outcomes)]) for lines in written if len(lines) > len(outcomes)]
        outcomes += [_of_values(last)] if brief and _raised_by_itself(last) else []
    return outcomes


def _raised_by_itself(values: list[Any]) -> bool:
    """Whether an answer has raised, and not because the others were gone: that is a `RuntimeError` of gloo's."""
    names = {value["raised"] for value in values if type(value) is dict and "raised" in value}
    return bool(names) and not any(name == "RuntimeError" or name.startswith("Dist") for name in names)


def _whole_lines(file: Path) -> list[str]:
    """The lines of a file that were written to their end."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


def _of_values(values: list[Any]) -> Outcome:
    raised = next((value for value in values if type(value) is dict and "raised" in value), None)
    if raised:
        return Outcome("raised", error=raised["raised"], text=raised["text"].split("\n\n")[0])
    return Outcome("returned", values=tuple(values))


class Trial:
    """An answer in all its cases, each given as ranks and inputs; run when asked for.

    Cases of equally many ranks share a launch, as far as they come to their end; the one that does not is tried by
    itself, and those after it share a launch again. A learner's answer is `told` in full: its first case is tried by
    itself, and so is one that raises, because only such a launch shows the lines that led there.
    """

    def __init__(
        self,
        drive: Callable,
        answer: Any,
        cases: Sequence[Setting],
        timeout: float,
        keeper: Keeper | None = None,
        *,
        told: bool = True,
    ) -> None:
        self._drive, self._answer, self._cases, self._timeout = drive, answer, cases, timeout
        self._keeper = keeper  # of inputs that are apart for each rank
        self._told = told
        self._seen: dict[int, Outcome] = {}
        self._by_itself = {0} if told else set[int]()

    def outcome(self, index: int) -> Outcome:
        """What the answer does in one of the cases."""
        if index not in self._seen and index not in self._by_itself:
            self._try_together(index)
        if index not in self._seen:
            self._seen[index] = self.alone(index)
        return self._seen[index]

    def alone(self, index: int) -> Outcome:
        """The same in a launch of its own, with all that it prints."""
        ranks, inputs = self._cases[index]
        return observe(self._drive, self._answer, ranks, inputs, self._timeout, keeper=self._keeper)

    def _try_together(self, first: int) -> None:
        """Try this one and those after it, up to one that does not return."""
        ranks = self._cases[first][0]
        places = [place for place in range(first, len(self._cases)) if self._cases[place][0] == ranks]
        if len(places) > 1:
            calls = [(self._answer, self._cases[place][1]) for place in places]
            outcomes = observe_many(self._drive, calls, ranks, self._timeout, brief=not self._told, keeper=self._keeper)
            self._seen.update(zip(places, outcomes, strict=False))
            self._by_itself.update(places[len(outcomes) :][:1])


def _launch(
    drive: Callable,
    calls: Sequence[Call],
    ranks: int,
    timeout: float,
    quiet: bool,
    catch: bool = False,
    aside: str | None = None,
    keeper: Keeper | None = None,
) -> Run:
    patience = Patience.with_ranks(timeout * (SPAWNED if start_method() == "spawn" else 1), ranks)
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        answers, given = [answer for answer, _ in calls], [inputs for _, inputs in calls]
        apart = [inputs for inputs in given if isinstance(inputs, PerRank)]
        inputs = keeper.hold(apart) if keeper else given
        return launch(_on_rank, drive, answers, inputs, catch, aside, ranks=ranks, timeout=patience)


def _on_rank(drive: Callable, answers: list, given: list | Parcel, catch: bool, aside: str | None) -> list[Any]:
    """What `drive` returns of each call; also written `aside`, a line each, where others may come to no end."""
    import torch
    import torch.distributed as dist

    if isinstance(given, Parcel):
        hide_memory()
        given = given.open(dist.get_rank())
        dist.barrier()  # all have theirs, and only now is there an answer that could ask for another's
    values = []
    with open(Path(aside, str(dist.get_rank())) if aside else os.devnull, "w") as lines:
        for answer, inputs in zip(answers, given, strict=True):
            torch.manual_seed(dist.get_rank())  # ranks do not draw alike, as in a real job
            try:
                values.append(encode(drive(_anew(answer) if aside else _unpacked(answer), **inputs)))
            except Exception as error:
                raised = {"raised": type(error).__name__, "text": str(error)}
                print(json.dumps(raised), file=lines, flush=True)
                if not catch:
                    raise
                values.append(raised)
            else:
                print(json.dumps(values[-1]), file=lines, flush=True)
            if aside:
                dist.barrier()  # nobody is in the next case while another one is stuck in this: that is seen at once
    return values


def _anew(answer: Any) -> Any:
    """A copy of a function that shares no globals with it: what one case leaves there, the next does not find."""
    import cloudpickle

    if isinstance(answer, Packed):
        return _unpacked(answer)
    try:
        return cloudpickle.loads(cloudpickle.dumps(answer))
    except Exception:
        return answer


def _unpacked(answer: Any) -> Any:
    import cloudpickle

    return cloudpickle.loads(answer.data) if isinstance(answer, Packed) else answer


def _account(error: RankFailed, name: str, text: str, ranks: int) -> str:
    """What was raised, and the learner's own lines on the way there."""
    who = f"rank {error.rank}" if ranks > 1 else "it"
    if own := own_frames(error.stack):
        return f"{who} raised {name}: {text}".removesuffix(": ") + "\n\n" + describe_stack(own)
    return f"calling it, or using what it returned, ended in {name}: {text}".removesuffix(": ")
