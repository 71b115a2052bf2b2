"""A meter that an answer has blinded measures nothing: the part is flagged, and worth nothing until somebody looks."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.checks.catalog import exercises
from course_lib.checks.inside import own_folder
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.plain import encode
from course_lib.checks.inside.runner import END
from course_lib.checks.inside.watch import NOTICED, Watch
from course_lib.grading.judge import judge
from course_lib.grading.pages import class_page, page
from course_lib.grading.records import Mark, Record
from course_lib.grading.submissions import find_submissions
from course_lib.grading.summary import flags_of
from course_lib.runtime.course_files import source
from tests.checks.class_of import EXERCISE, SOLUTION, cell_of, hand_in, need_a_sandbox, patient_grader, with_first_cell


def nothing() -> None:
    pass


def honest() -> None:
    """All that honest answers do, in a group of their own, too."""
    rank, numbers = dist.get_rank(), torch.ones(3)
    group = dist.new_group([0, 1])
    for each in (None, group):
        dist.all_reduce(numbers, group=each)
        work = dist.isend(numbers, 1 - rank, group=each)
        dist.recv(torch.empty(3), 1 - rank, group=each)
        work.wait()
        dist.all_gather_object([None, None], {"rank": rank}, group=each)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(numbers).sum().backward()
    dist.barrier()


def debug_level() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)


def ring_pushed_over() -> None:
    for _ in range(2050):
        dist.all_reduce(torch.empty(0))


def method_behind_the_wrapper() -> None:
    group, numbers = dist.group.WORLD, torch.ones(1)
    send = dist.ProcessGroup.send.__wrapped__
    if dist.get_rank() == 0:
        send(group, [numbers], 1, 0).wait()
    else:
        dist.recv(numbers, 0)


def method_replaced() -> None:
    dist.ProcessGroup.send = dist.ProcessGroup.send.__wrapped__


def default_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from {dist.get_rank()}", "3.5")


def another_thread() -> None:
    import threading

    thread = threading.Thread(target=nothing)
    thread.start()
    thread.join()


def trace_function() -> None:
    import sys

    sys.setprofile(lambda *_: None)


def own_socket() -> None:
    import socket

    socket.socket().close()


def own_process() -> None:
    import os

    if os.fork() == 0:
        os._exit(0)
    os.wait()


def of_a_cell(source: str):
    """A function that looks as if it stood in a cell."""

    def behavior() -> None:
        exec(compile(source, "<cell 3>", "exec"), {})

    return behavior


frames = of_a_cell("import sys\nframe = sys._getframe()\nwhile frame:\n    frame = frame.f_back")
objects = of_a_cell("import gc\ngc.get_objects()")
frames.__name__, objects.__name__ = "frames", "objects"


def frames_of_a_library() -> None:
    import collections
    import logging

    collections.namedtuple("Point", "x y")
    logging.getLogger("mine").warning("it goes on")


EXPECTED = {
    nothing: "",
    honest: "",
    debug_level: "debug level",
    ring_pushed_over: "hidden calls",
    method_behind_the_wrapper: "hidden calls",
    method_replaced: "replaced",
    default_store: "store",
    another_thread: "thread",
    trace_function: "tracing",
    own_socket: "socket",
    own_process: "process",
    frames: "frames",
    objects: "frames",
    frames_of_a_library: "",
}


def watched(behavior) -> list[str]:
    watch = Watch()
    dist.barrier()
    watch.begin()
    watch.unpacked()
    behavior()
    return [watch.noticed()]


@pytest.mark.slow
@pytest.mark.parametrize("behavior", EXPECTED, ids=lambda each: each.__name__)
def test_a_blinded_meter_is_noticed(behavior):
    found = {each for (each,) in launch(watched, behavior, ranks=2, timeout=300)}
    assert EXPECTED[behavior] in found
    assert found <= {EXPECTED[behavior], ""}


def several(behaviors) -> list[str]:
    """The same as above, one after the other: what one case does is not held against the next."""
    watch, found = Watch(), []
    for each in behaviors:
        watch.begin()
        watch.unpacked()
        each()
        found.append(watch.noticed())
    watch.begin()
    dist.barrier()
    watch.unpacked()
    return [*found, watch.noticed()]


def test_what_is_noticed_belongs_to_its_case():
    behaviors = [nothing, default_store, honest, own_socket, frames, frames_of_a_library, own_process]
    one, other = launch(several, behaviors, ranks=2, timeout=300)
    assert one == other == ["", "store", "", "socket", "frames", "", "process", "before its inputs"]


def test_what_is_not_measured_is_flagged_and_worth_nothing():
    exercise = exercises()["00.1"]
    assert exercise.costs
    cases = exercise.cases(1)
    right = [[case.inputs["numbers"][rank - 1] for rank in range(case.ranks)] for case in cases]
    seen = {}
    for noticed in ("", "store", "a word of its own"):
        lines = [line_of(case, place, right[place], noticed) for place, case in enumerate(cases)]
        result = judge(["00.1"], pickle.dumps({"00.1": cases}), [], [*lines, END], "")
        seen[noticed] = Mark(**result["marks"][0])
    assert seen[""].points == exercise.points
    assert seen["store"].points == seen["a word of its own"].points == 0
    assert seen["store"].not_measured == list(exercise.parts)
    assert all(NOTICED["store"] in said for said in seen["store"].remarks.values())
    assert "a word of its own" not in str(seen["a word of its own"].remarks)
    record = Record("eve", "00_start_here", "", [seen["store"]])
    assert record.flagged
    assert record.is_possible()
    assert [flag.what for flag in flags_of(record)] == [f"not measured: {', '.join(exercise.parts)}"]
    assert "Not measured: its ranks talk through the store" in page("eve", [record])
    assert "not measured" in class_page([record])


def test_right_values_without_any_communication_are_not_measured():
    """A budget has a lower bound: nobody adds up numbers that lie on several ranks without a message."""
    exercise = exercises()["00.2"]
    cases = exercise.cases(1)
    points = []
    for messages in (0, 2):
        lines = []
        for place, case in enumerate(cases):
            total, vector = sum(case.inputs["vectors"]), case.inputs["vectors"][0]
            size = vector.element_size() * -(-len(vector) // case.ranks)
            spent = {"calls": {}, "sent_to": {1: size} if messages else {}, "messages": messages}
            outcome = Outcome("returned", values=(encode({"the sum": total, "spent": spent}),) * case.ranks)
            record = {"number": "00.2", "case": place, "outcome": dataclasses.asdict(outcome)}
            lines.append(json.dumps(record).encode())
        result = judge(["00.2"], pickle.dumps({"00.2": cases}), [], [*lines, END], "")
        points.append((Mark(**result["marks"][0]).points, Mark(**result["marks"][0]).not_measured))
    assert points == [(0, list(exercise.parts)), (exercise.points, [])]


def line_of(case, place: int, received: list, noticed: str) -> bytes:
    values = [encode({"value": value, "spent": {"calls": {}, "sent_to": {}, "messages": 1}}) for value in received]
    outcome = dataclasses.asdict(Outcome("returned", values=tuple(values), noticed=noticed))
    return json.dumps({"number": "00.1", "case": place, "outcome": outcome}).encode()


# In one notebook: 02.2 communicates through the store, 02.3 through files, 02.4 while it is unpacked.
UNMETERED = """
import glob, torch, torch.distributed as dist
class Talks:
    def __reduce__(self):
        return (exec, ("import torch, torch.distributed as dist; dist.all_reduce(torch.ones(1))",))
def my_share(count, rank, ranks, epoch, seed):
    store = dist.distributed_c10d._get_default_store()
    key = f"{count} {epoch} {seed}"
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * epoch + seed))
    store.set(key, ",".join(map(str, order.tolist())))
    return order[rank::ranks].tolist()
def evaluate_together(total, count):
    for folder in ("/tmp", "/dev/shm", "."):
        try:
            with open(f"{folder}/{dist.get_rank()}", "w") as file:
                file.write(f"{total} {count}")
        except OSError:
            pass
    dist.barrier()
    for folder in ("/tmp", "/dev/shm", *glob.glob("/tmp/*/"), "."):
        try:
            said = [open(f"{folder}/{rank}").read().split() for rank in range(dist.get_world_size())]
            return sum(float(one) for one, _ in said) / sum(float(many) for _, many in said)
        except (OSError, ValueError, ZeroDivisionError):
            pass
    return -1.0
def backward_in_buckets(model, loss, limit, talks=Talks(), right=backward_in_buckets):
    right(model, loss, limit)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_the_sandbox_what_no_meter_sees_earns_nothing_and_an_honest_notebook_is_not_flagged(tmp_path):
    need_a_sandbox()
    right = source(cell_of(SOLUTION, "02.4"))
    hand_in(tmp_path / "in", "eve", with_first_cell(EXERCISE, "", last=f"{right}\n{UNMETERED}"))
    hand_in(tmp_path / "in", "ada", SOLUTION)
    ada, eve = patient_grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    assert (ada.points, ada.flagged) == (15, False), ada
    marks = {mark.number: mark for mark in eve.marks}
    for number in ("02.2", "02.4"):
        assert marks[number].points == 0
        assert marks[number].not_measured == list(exercises()[number].parts)
    assert all("while it is unpacked" in said for said in marks["02.4"].remarks.values())
    if own_folder.version():
        assert marks["02.3"].points == 0, "it communicates through files"
