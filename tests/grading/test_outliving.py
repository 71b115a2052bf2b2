"""Nothing that a cell can reach is there when the answers run, and no rank reaches the server that ranks come from."""

from __future__ import annotations

import json

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.inside import own_folder
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.runner import Submission
from course_lib.grading import runs, sandbox
from course_lib.grading.grader import Grader
from course_lib.grading.limits import Limits
from tests.checks.class_of import need_a_sandbox
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# In the cells: find every process whose memory can be written to, and put a request into the fork server's queue.
IN_A_CELL = """
import multiprocessing.forkserver, multiprocessing.reduction, os, pickle, signal, socket
REACHED = []
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        if int(name) != os.getpid():
            open(f"/proc/{name}/mem", "r+b").close()
            REACHED.append(name)
    except OSError:
        pass
STAYS = '''
import socket, time
here = socket.socket(socket.AF_UNIX)
here.bind(b"\\\\0stays")
here.listen()
time.sleep(1000)
'''
class Stays:
    def __reduce__(self):
        return exec, (STAYS,)
os.kill(os.getppid(), signal.SIGSTOP)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(multiprocessing.forkserver._forkserver._forkserver_address)
    data, to_data = os.pipe()
    status, to_status = os.pipe()
    alive, other = os.pipe()
    multiprocessing.reduction.sendfds(client, [data, to_status, alive, other])
    os.write(to_data, pickle.dumps(Stays()))
"""
# On a rank: what has stayed, and is the server that ranks come from within reach? Returned as the answer.
ON_A_RANK = """
def stays(name):
    try:
        with open(f"/proc/{name}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
def evaluate_together(total, count):
    import multiprocessing.forkserver, os, socket
    found = ["reached before" for name in REACHED if stays(name)]
    with open("/proc/net/unix") as file:
        found += ["left in the queue"] if "@stays" in file.read() else []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) != os.getpid():
                open(f"/proc/{name}/mem", "r+b").close()
                found.append("another's memory")
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(multiprocessing.forkserver._forkserver._forkserver_address)
        found.append("the server of ranks")
    except PermissionError:
        pass
    return [len(REACHED), *found]
"""


def test_nothing_that_a_cell_can_reach_outlives_the_cells(tmp_path):
    need_a_sandbox()
    if own_folder.version() < 6:
        pytest.skip("this kernel's Landlock does not keep a rank from sockets without a file")
    Grader(tmp_path)  # makes exercises travel by value
    exercise = exercises()["02.3"]
    case = next(case for case in exercise.cases(1) if case.ranks == 2)
    submission = Submission([IN_A_CELL + ON_A_RANK], [runs._task(exercise, [case])], timeout=float(PATIENCE))
    result = sandbox.run(submission, Limits(seconds=900))
    outcome = Outcome.of_record(json.loads(result.lines[0])["outcome"])
    (reached, *found), (also_reached, *also_found) = outcome.decoded()
    assert reached == also_reached > 0, "the attack is real: the first server lies open"
    assert (found, also_found) == ([], [])
