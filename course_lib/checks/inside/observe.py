"""Run an answer on real ranks and record what happened."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from course_lib.launcher.hangs.errors import CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck
from course_lib.launcher.hangs.stacks import describe_stack, user_code_frames
from course_lib.launcher.notebook.launch import launch, start_method
from course_lib.launcher.notebook.run import Run
from course_lib.runtime import private_doors
from course_lib.runtime.patience import Patience

from .keeper import Keeper, Packed, Parcel, PerRank, hide_memory, open_fewer_files
from .own_folder import keep_to_own_folder
from .plain import decode, encode
from .transport import CALLS, FAULTS, Transport, read
from .watch import Watch

SPAWNED = 10  # multiplies the patience: a spawned rank imports what a forked one inherits from its server
KINDS = {RankFailed: "raised", RankDied: "died", RanksStuck: "stuck", CollectivesDiffer: "differ"}
Inputs = dict[str, Any] | PerRank  # the keyword arguments of `drive`
Call = tuple[Any, Inputs]  # an answer and its inputs
Setting = tuple[int, Inputs]  # the number of ranks and the inputs
DOING = ("waiting", "running", "computing", "returned", "stopped")


@dataclass(frozen=True)
class Outcome:
    """What an answer did in one case.

    `kind` is `returned`, `raised`, `died`, `stuck`, `slow`, `differ`, or another word if the answer could not be run.

    `stuck` means that ranks wait for each other; `slow` means that only the timeout stopped them.

    `values[rank]` is plain data, as `encode` writes it. `shown` is the launcher's message, for the learner.
    `states[rank]` is what a rank was doing when all were stuck: the state, the call, and the peers it waits for.
    `in_flight` lists what ranks did wrong with calls that they had started, as (fault, call) pairs.
    `noticed` is a key of `NOTICED` if the answer blinded a meter, so its counts cannot be trusted.
    """

    kind: str
    values: tuple = ()
    error: str = ""
    text: str = ""
    cell: str = ""
    line: int = 0
    shown: str = ""
    states: tuple = ()
    in_flight: tuple = ()
    noticed: str = ""

    def decoded(self) -> list[Any]:
        """Return the ranks' values as tensors, numbers, text, lists and dicts."""
        return [decode(value) for value in self.values]

    @classmethod
    def of_record(cls, record: Any) -> Outcome:
        """Return the outcome that `asdict` turned into this record. Raises `ValueError` for any other record."""
        if type(record) is not dict or record.keys() != asdict(cls("")).keys():
            raise ValueError("this is not an outcome")
        texts = [record[name] for name in ("kind", "error", "text", "cell", "shown", "noticed")]
        if not (all(type(text) is str for text in texts) and type(record["line"]) is int):
            raise ValueError("this is not an outcome")
        states = tuple(map(tuple, record["states"]))
        if not all(len(state) == 3 and state[0] in DOING and all(type(t) is str for t in state) for state in states):
            raise ValueError("this is not an outcome")
        in_flight = tuple(map(tuple, record["in_flight"]))
        if not all(len(fault) == 2 and fault[0] in FAULTS and fault[1] in CALLS for fault in in_flight):
            raise ValueError("this is not an outcome")
        outcome = cls(**{**record, "values": tuple(record["values"]), "states": states, "in_flight": in_flight})
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
    """Call `drive(answer, **inputs)` on `ranks` ranks and return the outcome. `quiet` hides what they print."""
    with tempfile.TemporaryDirectory() as aside:
        outcome = _observe(drive, answer, ranks, inputs, timeout, quiet, keeper, aside)
        found = [fault for rank in range(ranks) for fault in read(Path(aside, f"{rank} in flight"))]
    return outcome if outcome.kind == "returned" else replace(outcome, in_flight=tuple(map(tuple, found)))


def _observe(
    drive: Callable,
    answer: Any,
    ranks: int,
    inputs: Inputs,
    timeout: float,
    quiet: bool,
    keeper: Keeper | None,
    aside: str,
) -> Outcome:
    try:
        run = _launch(drive, [(answer, inputs)], ranks, timeout, quiet, aside, keeper=keeper)
    except RankFailed as error:
        name, text = error.raised[0], error.raised[1].split("\n\n")[0]
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
    return _of_values([value[0] for value in run])


def _kind(error: LaunchError) -> str:
    """Return `stuck` if ranks wait for each other, `slow` if one is working or there is no other rank to wait for."""
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
    same: bool = False,
    keeper: Keeper | None = None,
) -> list[Outcome]:
    """Call `drive(answer, **inputs)` for each call in one launch, which is much faster than one launch per call.

    Returns the outcomes in order, up to the first call that did not return: only a separate launch can show what
    happened there. `catch` continues after a call that raises, if all ranks get out of it. `brief` also returns the
    outcome of a call that raised, without its stack, which would need a separate launch. `same` means that all calls
    are of one answer and share a copy of it, so each call sees what earlier ones left in its globals and defaults.
    """
    with tempfile.TemporaryDirectory() as aside:
        with contextlib.suppress(LaunchError):
            limit, together = timeout + 0.2 * len(calls), {"together": True, "catch": catch, "same": same}
            _launch(drive, calls, ranks, limit, True, aside, **together, keeper=keeper)
        written = [_whole_lines(Path(aside, str(rank))) for rank in range(ranks)]
    outcomes = [_of_values(list(map(json.loads, values))) for values in zip(*written, strict=False)]
    if not catch:
        outcomes = [outcome for outcome in outcomes if outcome.kind == "returned"]
        last = [json.loads(lines[len(outcomes)]) for lines in written if len(lines) > len(outcomes)]
        outcomes += [_of_values(last)] if brief and _raised_by_itself(last) else []
    return outcomes


def _raised_by_itself(values: list[Any]) -> bool:
    """Return whether an answer raised on its own, not because a peer was gone, which gloo reports as `RuntimeError`."""
    names = {value["raised"] for value in values if type(value) is dict and "raised" in value}
    return bool(names) and not any(name == "RuntimeError" or name.startswith("Dist") for name in names)


def _whole_lines(file: Path) -> list[str]:
    """Return the complete lines of a file: a killed rank may leave a partial one."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


def _of_values(values: list[Any]) -> Outcome:
    raised = next((value for value in values if type(value) is dict and "raised" in value), None)
    if raised:
        return Outcome("raised", error=raised["raised"], text=raised["text"].split("\n\n")[0])
    in_flight = tuple(tuple(fault) for value in values for fault in value["in_flight"])
    noticed = next((value["noticed"] for value in values if value["noticed"]), "")
    return Outcome("returned", values=tuple(value["value"] for value in values), in_flight=in_flight, noticed=noticed)


class Trial:
    """Runs an answer on its cases, on demand. Each case is a number of ranks and their inputs.

    Cases with the same number of ranks share a launch until one doesn't return; that one gets a separate launch, and
    the cases after it share one again. `told` asks for full reports, for learners: the first case, and any that raises,
    get separate launches, because only those show the lines that led to the error. The other cases share one copy of
    the answer, as calls in a program do.
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
        self._keeper = keeper  # if each rank has separate inputs
        self._told = told
        self._seen: dict[int, Outcome] = {}
        self._by_itself = {0} if told else set[int]()

    def outcome(self, index: int) -> Outcome:
        """Return what the answer does in one of the cases."""
        if index not in self._seen and index not in self._by_itself:
            self._try_together(index)
        if index not in self._seen:
            self._seen[index] = self.alone(index)
        return self._seen[index]

    def alone(self, index: int) -> Outcome:
        """Run a case in a separate launch, which shows what it prints, and return the outcome."""
        ranks, inputs = self._cases[index]
        return observe(self._drive, self._answer, ranks, inputs, self._timeout, keeper=self._keeper)

    def _try_together(self, first: int) -> None:
        """Run this case and those after it, up to the first that doesn't return, in one launch."""
        ranks = self._cases[first][0]
        places = [place for place in range(first, len(self._cases)) if self._cases[place][0] == ranks]
        if len(places) > 1:
            calls = [(self._answer, self._cases[place][1]) for place in places]
            how = {"brief": not self._told, "same": self._told}
            outcomes = observe_many(self._drive, calls, ranks, self._timeout, **how, keeper=self._keeper)
            self._seen.update(zip(places, outcomes, strict=False))
            self._by_itself.update(places[len(outcomes) :][:1])


def _launch(
    drive: Callable,
    calls: Sequence[Call],
    ranks: int,
    timeout: float,
    quiet: bool,
    aside: str,
    *,
    together: bool = False,
    catch: bool = False,
    same: bool = False,
    keeper: Keeper | None = None,
) -> Run:
    patience = Patience.with_ranks(timeout * (SPAWNED if start_method() == "spawn" else 1), ranks)
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        answers, given = [answer for answer, _ in calls], [inputs for _, inputs in calls]
        apart = [inputs for inputs in given if isinstance(inputs, PerRank)]
        inputs = keeper.hold(apart, confined=all(each.confined for each in apart)) if keeper else given
        return launch(_on_rank, drive, answers, inputs, catch, aside, together, same, ranks=ranks, timeout=patience)


def _on_rank(
    drive: Callable, answers: list, given: list | Parcel, catch: bool, aside: str, together: bool, same: bool
) -> list[Any]:
    """Return what `drive` returns for each call. Also write each to a file in `aside`, in case a later one hangs."""
    import torch
    import torch.distributed as dist

    claim, watch, cases = None, None, [] if isinstance(given, Parcel) else given
    if isinstance(given, Parcel):
        hide_memory()
        open_fewer_files()
        claim = given.claim(dist.get_rank())
    transport = Transport(Path(aside, f"{dist.get_rank()} in flight"))
    transport.install()
    if claim:
        watch = Watch()  # after the transport, so that it doesn't report the transport's methods
        dist.barrier()  # before all ranks have claimed their inputs, an answer could claim another rank's
    values, unpacked = [], None
    with open(Path(aside, str(dist.get_rank())), "w") as lines:
        if isinstance(given, Parcel) and given.confined:
            keep_to_own_folder(*_files_of_store(), *transport.files())
        for place, answer in enumerate(answers):
            torch.manual_seed(dist.get_rank())  # ranks draw different random numbers, as in a real job
            transport.begin_case()
            if watch:
                watch.begin()
            try:
                if not (same and place):
                    unpacked = _anew(answer) if together else _unpacked(answer)
                if watch:
                    watch.unpacked()
                value = drive(unpacked, **(claim.next_case() if claim else cases[place]))
                noticed = watch.noticed() if watch else ""
                values.append({"value": encode(value), "in_flight": transport.faults(value), "noticed": noticed})
            except Exception as error:
                raised = {"raised": type(error).__name__, "text": str(error)}
                print(json.dumps(raised), file=lines, flush=True)
                transport.note_dropped()
                if not catch:
                    raise
                values.append(raised)
            else:
                print(json.dumps(values[-1]), file=lines, flush=True)
            if together:
                dist.barrier()  # keeps ranks in the same case, so a hang shows at once
    return values


def _files_of_store() -> list[str]:
    """Return the file behind the default store, if it has one: ranks need it to create process groups."""
    store: Any = private_doors.default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return [store.path] if hasattr(store, "path") else []


def _anew(answer: Any) -> Any:
    """Return a copy of a function with separate globals, so that no case sees what an earlier one left there."""
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
    """Return what was raised, and the learner's own lines in the stack."""
    who = f"rank {error.rank}" if ranks > 1 else "it"
    if own := user_code_frames(error.stack):
        return f"{who} raised {name}: {text}".removesuffix(": ") + "\n\n" + describe_stack(own)
    return f"calling it, or using what it returned, raised {name}: {text}".removesuffix(": ")
