"""Everything that goes wrong on a rank ends in an error that names it, and in a notebook that works on.

Each test runs in a real kernel. After each, no process may be left, the kernel's signal handlers must be
as they were, and the next launch must work.
"""

from __future__ import annotations

import pytest

from tests.conftest import PATIENCE, Kernel, ranks_of, wait_until

slow = pytest.mark.slow

HANDLERS = "[str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)]"


@pytest.fixture
def notebook(kernel: Kernel):
    before = kernel.run(HANDLERS).result
    yield kernel
    assert wait_until(lambda: not ranks_of(kernel.family()), PATIENCE), ranks_of(kernel.family())
    assert kernel.run(HANDLERS).result == before
    assert kernel.run("launch(dist.get_rank, ranks=2)").result == "Run of 2 ranks: [0, 1]"


@pytest.mark.parametrize("attempts", [3, pytest.param(50, marks=slow)])
def test_a_raise_on_one_rank_is_blamed_on_that_rank_every_time(notebook, attempts):
    cell = notebook.run(
        f"""
attempts = {attempts}"""
        """
def train():
    if dist.get_rank() == 3:
        raise ValueError("no data")
    dist.all_reduce(torch.ones(10))

blamed = []
for attempt in range(attempts):
    try:
        launch(train, ranks=4)
    except RankFailed as error:
        blamed.append((error.rank, "raise ValueError" in str(error), type(error.exception).__name__))
print(set(blamed), len(blamed))
"""
    )
    assert cell.text == f"{{(3, True, 'ValueError')}} {attempts}\n", cell.message


def test_the_error_shows_the_cells_own_line_and_no_machine_path(notebook):
    cell = notebook.run("def train():\n    bad = 1 / 0\n\nlaunch(train, ranks=2)")
    assert cell.error == "RankFailed"
    assert "rank 0 raised ZeroDivisionError: division by zero" in cell.message
    assert "line 2, in train\n    bad = 1 / 0" in cell.message
    assert "Cell In[" in cell.message
    assert "/" not in cell.message.replace("1 / 0", "")


def test_a_rank_can_show_the_cells_lines_itself(notebook):
    cell = notebook.run(
        """
import traceback
def train():
    try:
        return 1 / 0
    except ZeroDivisionError:
        return "return 1 / 0" in traceback.format_exc()
launch(train, ranks=2)
"""
    )
    assert cell.result == "Run of 2 ranks: [True, True]", cell.message


def test_when_every_rank_raises_one_is_blamed_and_the_others_are_named(notebook):
    cell = notebook.run("def train():\n    raise KeyError('weights')\n\nlaunch(train, ranks=4)")
    assert "rank 0 raised KeyError: 'weights'" in cell.message
    assert "ranks 1, 2 and 3 raised too" in cell.message


def test_an_exception_class_from_the_cell_comes_back_as_itself(notebook):
    cell = notebook.run(
        """
class Exploded(Exception): pass
def train():
    raise Exploded("loss is nan")
try:
    launch(train, ranks=2)
except RankFailed as error:
    print(type(error.exception) is Exploded, error.__cause__ is error.exception, str(error).splitlines()[0])
"""
    )
    assert cell.text == "True True rank 0 raised Exploded: loss is nan\n", cell.message


@pytest.mark.parametrize("body", ["self.lock = __import__('threading').Lock()", "super().__init__(a, b, 'both')"])
def test_an_exception_that_cannot_be_pickled_still_shows_its_type_and_text(notebook, body):
    cell = notebook.run(
        f"""
class Stubborn(Exception):
    def __init__(self, a, b):
        {body}
    def __str__(self): return "will not travel"
def train():
    raise Stubborn(1, 2)
launch(train, ranks=2)
"""
    )
    assert cell.error == "RankFailed"
    assert "rank 0 raised Stubborn: will not travel" in cell.message


@pytest.mark.parametrize(
    ("death", "says"),
    [
        ("os._exit(3)", "rank 1 ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by SIGKILL"),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", "rank 1 was killed by SIGSEGV", marks=slow),
        ("__import__('ctypes').string_at(0)", "rank 1 was killed by SIGSEGV"),
    ],
)
def test_a_rank_that_dies_is_named_without_a_timeout(notebook, death, says):
    cell = notebook.run(
        f"""
def train():
    if dist.get_rank() == 1:
        {death}
    dist.barrier()
try:
    launch(train, ranks=4, timeout=None)
except RankDied as error:
    print(error.rank, error.exitcode, error)
"""
    )
    assert says in cell.text, cell.message
    assert cell.text.count("rank 1 ") == 1 or "[rank" in cell.text


def test_a_segmentation_fault_shows_the_line_it_happened_on(notebook):
    cell = notebook.run("import ctypes\ndef train():\n    ctypes.string_at(0)\n\nlaunch(train, ranks=2)")
    assert cell.error == "RankDied"
    assert "line 3, in train\n    ctypes.string_at(0)" in cell.message


@pytest.mark.parametrize(
    ("odd_call", "says"),
    [
        ("dist.broadcast(torch.ones(4), 0)", "rank 2  broadcast of float32 [4]"),
        ("dist.all_reduce(torch.ones(5))", "rank 2  all_reduce of float32 [5]"),
        pytest.param("dist.all_reduce(torch.ones(90000))", "rank 2  all_reduce of float32 [90000]", marks=slow),
        pytest.param("dist.all_reduce(torch.ones(1))", "rank 2  all_reduce of float32 [1]", marks=slow),
        pytest.param("dist.all_reduce(torch.ones(2, 2))", "rank 2  all_reduce of float32 [2, 2]", marks=slow),
        pytest.param(
            "dist.all_reduce(torch.ones(4, dtype=torch.float64))", "rank 2  all_reduce of float64 [4]", marks=slow
        ),
        ("dist.all_reduce(torch.ones(4, dtype=torch.int32))", "rank 2  all_reduce of int32 [4]"),
    ],
)
def test_different_collectives_are_an_error_that_says_what_each_rank_called(notebook, odd_call, says):
    cell = notebook.run(
        f"""
def train():
    if dist.get_rank() == 2:
        {odd_call}
    else:
        dist.all_reduce(torch.ones(4))
try:
    launch(train, ranks=4, timeout=None)
except CollectivesDiffer as error:
    print(error.rank, error)
"""
    )
    assert "2 the ranks called different collectives; rank 2 is the odd one out" in cell.text, cell.message
    assert says in cell.text
    for rank in (0, 1, 3):
        assert f"rank {rank}  all_reduce of float32 [4]" in cell.text


def test_a_message_that_does_not_fit_is_told_as_such_and_not_in_the_words_of_gloo(notebook):
    cell = notebook.run(
        """
def train():
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(2), 0)
try:
    launch(train, ranks=2)
except CollectivesDiffer as error:
    print(error)
"""
    )
    assert "a message does not match its receive" in cell.text, cell.message
    assert "send of float32 [4] to rank 1" in cell.text
    assert "recv of float32 [2] from rank 0" in cell.text
    assert "gloo" not in cell.text
    assert "what()" not in cell.text


STUCK = [
    ("endless loop", "while rank == 3: pass\n    dist.barrier()", "(3,)", "rank 3  is running"),
    ("sleep", "rank == 3 and time.sleep(99)\n    dist.barrier()", "(3,)", "rank 3  is running"),
    (
        "C holds the lock",
        "rank == 3 and ctypes.PyDLL(None).sleep(99)\n    dist.barrier()",
        "(3,)",
        "rank 3  is running",
    ),
]


@pytest.mark.parametrize(
    ("body", "odd", "says"),
    [pytest.param(*row[1:], id=row[0], marks=[slow] if row[0] == "sleep" else []) for row in STUCK],
)
def test_ranks_that_are_stuck_say_where_and_who_is_the_odd_one_out(notebook, body, odd, says):
    cell = notebook.run(
        f"""
import ctypes
def train():
    rank, x, libc = dist.get_rank(), torch.ones(3), ctypes.PyDLL(None)  # its calls keep Python's lock
    {body}
try:
    launch(train, ranks=4, timeout=4)
except RanksStuck as error:
    print("odd:", error.odd)
    print(error)
    print("lines:", {{r: error.where[r].frame and error.where[r].frame.line for r in range(4)}})
"""
    )
    assert f"odd: {odd}\n" in cell.text, cell.message or cell.text
    assert "not finished after 4 s" in cell.text
    assert says in cell.text
    assert "Cell In[" in cell.text
    assert "3: 4}" in cell.text  # the line on which rank 3 is, even where it cannot answer


FOR_EVER = [
    (
        "one rank does more",
        "if rank == 2: dist.all_reduce(x)",
        "(2,)",
        "rank 2 waits in all_reduce for ranks 0, 1 and 3, which have returned",
    ),
    (
        "one rank skips",
        "if rank != 2: dist.all_reduce(x)",
        "(2,)",
        "ranks 0, 1 and 3 wait in all_reduce for rank 2, which has returned",
    ),
    (
        "recv without send",
        "if rank == 1: dist.recv(x, 0)",
        "(0,)",
        "rank 1 waits in recv for rank 0, which has returned",
    ),
    ("all receive", "dist.recv(x, (rank + 1) % 4)", "()", "every rank waits in recv, and no rank sends"),
    ("all send", "dist.send(x, (rank + 1) % 4)", "()", "every rank waits in send, and no rank receives"),
    (
        "one receives where the others reduce",
        "dist.all_reduce(x) if rank != 1 else dist.recv(x, 2)",
        "(1,)",
        "rank 1  waits in recv for rank 2",
    ),
]


@pytest.mark.parametrize(("body", "odd", "says"), [row[1:] for row in FOR_EVER], ids=[row[0] for row in FOR_EVER])
def test_ranks_that_would_wait_for_ever_are_found_without_a_timeout(notebook, body, odd, says):
    cell = notebook.run(
        f"""
def train():
    rank, x = dist.get_rank(), torch.ones(3)
    {body}
try:
    launch(train, ranks=4, timeout=None)
except RanksStuck as error:
    print("odd:", error.odd)
    print(error)
"""
    )
    assert f"odd: {odd}\n" in cell.text, cell.message or cell.text
    assert "the ranks wait forever; " in cell.text
    assert says in cell.text


@pytest.mark.parametrize(("made_by_rank_0", "counts"), [(5, {0: 4, 1: 3, 2: 3}), (2, {0: 2, 1: 3, 2: 3})])
def test_a_hang_says_how_many_collectives_each_rank_has_begun(notebook, made_by_rank_0, counts):
    cell = notebook.run(
        f"""
def train():
    for _ in range({made_by_rank_0} if dist.get_rank() == 0 else 3):
        dist.all_reduce(torch.ones(2))
try:
    launch(train, ranks=3, timeout=None)
except RanksStuck as stuck:
    print(stuck.odd, dict(stuck.counts))
"""
    )
    assert cell.text == f"(0,) {counts}\n", cell.message


@pytest.mark.parametrize(
    ("begin", "collective"),
    [
        ("dist.all_reduce(torch.ones(3), async_op=True)", "all_reduce"),
        ("dist.irecv(torch.ones(3), 1)", "recv for rank 1"),
    ],
)
def test_a_wait_for_work_begun_earlier_says_which_collective_it_waits_for(notebook, begin, collective):
    cell = notebook.run(
        f"""
def train():
    if dist.get_rank() != 1:
        work = {begin}
        work.wait()
launch(train, ranks=3, timeout=None)
"""
    )
    assert cell.error == "RanksStuck"
    assert "for rank 1, which has returned" in cell.message
    assert f"rank 0  waits in {collective} at" in cell.message
    assert ": work.wait()" in cell.message


def test_a_hang_in_the_backward_pass_of_ddp_is_a_wait_for_its_all_reduce(notebook):
    cell = notebook.run(
        """
from torch.nn.parallel import DistributedDataParallel
def train():
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(torch.ones(3)).sum()
    if dist.get_rank() != 1:
        loss.backward()
launch(train, ranks=3, timeout=None)
"""
    )
    assert cell.error == "RanksStuck", cell.message
    assert "ranks 0 and 2 wait in all_reduce for rank 1, which has returned" in cell.message
    assert "line 6: loss.backward()" in cell.message
    assert "rank 0  waits in all_reduce at" in cell.message


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("launch(print, ranks=0)", "ValueError", "ranks=0: a launch needs at least one rank"),
        ("launch(print, ranks=-1)", "ValueError", "ranks=-1: a launch needs at least one rank"),
        ("launch(print, ranks='four')", "TypeError", "ranks='four': give the number of ranks as a whole number"),
        ("launch(print, ranks=10**6)", "ValueError", "at most 64 ranks on one machine"),
        ("launch(print, ranks=2, timeout=-1)", "ValueError", "timeout=-1: give a number of seconds above 0"),
        ("launch(print, ranks=2, timeout='long')", "TypeError", "timeout='long': give a number of seconds"),
        ("launch(None, ranks=2)", "TypeError", "fn=None: launch needs a function"),
    ],
)
def test_bad_input_gets_a_sentence_before_any_process_starts(notebook, call, error, says):
    cell = notebook.run(f"try:\n    {call}\nexcept Exception as error:\n    print(type(error).__name__, error)")
    assert cell.text.startswith(error)
    assert says in cell.text
    assert not ranks_of(notebook.family())


def test_launch_on_a_rank_is_refused(notebook):
    cell = notebook.run("launch(lambda: launch(print, ranks=2), ranks=2)")
    assert cell.error == "RankFailed"
    assert "a rank cannot launch ranks" in cell.message


@pytest.mark.parametrize(
    ("setup", "call", "says"),
    [
        ("lock = __import__('threading').Lock()", "launch(lambda x: x, lock, ranks=2)", "argument 'x' cannot be sent"),
        ("lock = __import__('threading').Lock()", "launch(print, a=lock, ranks=2)", "argument 'a' cannot be sent"),
        ("lock = __import__('threading').Lock()\ndef f(): return lock", "launch(f, ranks=2)", "'lock', which f uses,"),
        (
            "def f(): return {'ok': 1, 'rows': (i for i in [1])}",
            "launch(f, ranks=2)",
            "the returned value['rows']",
        ),
        ("import threading\ndef f(): return [1, [threading.Lock()]]", "launch(f, ranks=2)", "value[1][0] (a lock)"),
    ],
)
def test_a_value_that_cannot_travel_is_named(notebook, setup, call, says):
    cell = notebook.run(f"{setup}\n{call}")
    assert cell.error == "CannotSend", cell.message
    assert says in cell.message


def test_children_of_a_rank_that_dies_go_with_it(notebook):
    cell = notebook.run(
        """
import subprocess
from torch.utils.data import DataLoader
def train():
    if dist.get_rank() == 1:
        batches = iter(DataLoader(list(range(1000)), num_workers=2))
        next(batches)
        subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sleep", "601"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
launch(train, ranks=2)
"""
    )
    assert cell.error == "RankDied", cell.message


def test_children_of_a_rank_that_returns_go_with_it(notebook):
    cell = notebook.run(
        "import subprocess\nlaunch(lambda: subprocess.Popen(['sleep', '600'], start_new_session=True).pid > 0, ranks=2)"
    )
    assert cell.result == "Run of 2 ranks: [True, True]", cell.message
