"""Live ranks keep their variables between cells, and every fault of a cell is named as by `launch`.

After each test, the same team must run another cell that communicates.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from course_lib import CannotSend, CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck, ranks
from course_lib.drawing.timeline import draw_messages, draw_timeline
from course_lib.launcher.live import tasks
from course_lib.launcher.live import team as team_module
from course_lib.launcher.live.cell import OnRank, names_in, side_by_side
from course_lib.launcher.live.team import LOST, RESTARTED
from tests.conftest import wait_until

slow = pytest.mark.slow
TOGETHER = "together = torch.ones(1); dist.all_reduce(together); int(together)"


@pytest.fixture(scope="module")
def the_team():
    with ranks(4) as team:
        yield team


@pytest.fixture
def team(the_team):
    """The team, with `x` on every rank; it must be able to run another cell after the test."""
    the_team.run("import ctypes, os, signal, time; x = torch.ones(3); globals().pop('model', None)")
    yield the_team
    assert list(the_team.run(TOGETHER)) == [4, 4, 4, 4]


def keeps_x(team):
    return all("x" in team.names.get(rank, ()) for rank in range(len(team)))


def test_variables_stay_and_the_last_expression_comes_from_every_rank(team):
    run = team.run("y = 10 * rank\ny + 1")
    assert list(run) == [1, 11, 21, 31]
    assert repr(run) == "rank 0  1\nrank 1  11\nrank 2  21\nrank 3  31"
    assert list(team.run("y += 1; y")) == [1, 11, 21, 31]
    assert team[2]["y"] == 21
    assert team.pull("y") == [1, 11, 21, 31]
    assert team.run("z = 1").texts == {}
    assert team.run("rank;").texts == {}


def test_the_process_group_is_up_and_the_given_names_are_there(team):
    run = team.run("dist.get_rank() == rank and dist.get_world_size() == world_size and str(device)")
    assert list(run) == ["cpu"] * 4
    assert list(team.run("dist.init_process_group('gloo'); dist.init_process_group('gloo'); 1")) == [1] * 4


def test_a_cell_on_some_ranks_leaves_the_others_alone(team):
    team.run("only = rank", [1, 3])
    assert list(team.run("'only' in globals()")) == [False, True, False, True]
    assert team.pull("only", [1, 3]) == [1, 3]
    assert repr(team.run("rank", [1, 3])) == "rank 1  1\nrank 3  3"
    with pytest.raises(NameError, match=r"there is no 'only' on ranks 0 and 2"):
        team.pull("only")
    with pytest.raises(IndexError, match="this team has the ranks 0 to 3"):
        team.run("1", [4])


def test_values_are_pushed_and_pulled_as_they_are(team):
    team.push(lr=0.5, weights=torch.arange(3.0))
    team.push(2, lr=0.25)
    team[1]["lr"] = 0.125
    assert team.pull("lr") == [0.5, 0.125, 0.25, 0.5]
    assert torch.equal(team[3]["weights"], torch.arange(3.0))
    with pytest.raises(CannotSend, match="'lock' cannot be sent to the ranks"):
        team.push(lock=threading.Lock())
    team.run("lock = __import__('threading').Lock()")
    with pytest.raises(CannotSend, match=r"rank 0: .*cannot be sent back"):
        team.pull("lock")


def test_a_value_that_is_large_or_cannot_travel_is_shown_and_stays(team):
    run = team.run("torch.zeros(1_000_000)")
    assert isinstance(run[0], OnRank)
    assert repr(run[0]).startswith("tensor([0., 0., 0.")
    assert team.pull("_", [1])[0].shape == (1_000_000,)
    assert isinstance(team.run("torch.nn.Linear(2, 2)")[0], OnRank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_large_values_are_the_same_on_both_sides(team, dtype):
    value = torch.arange(3_000_000).reshape(1000, 3000).t().remainder(7).to(dtype)
    team.push(large=value, more={"a": [value, 1]})
    assert torch.equal(team[1]["large"], value)
    assert torch.equal(team[2]["more"]["a"][0], value)
    team.run("grown = (large.float() * (rank + 1)).requires_grad_()")
    pulled = team.pull("grown")
    assert torch.equal(pulled[3].detach(), value.float() * 4)
    assert pulled[3].requires_grad


def test_names_that_are_missing_are_sent_along_and_the_output_says_so(team, capsys):
    here = {"step": lambda a: a + 1, "rate": 0.1, "unused": threading.Lock()}
    assert team.run("step(rank) * rate", names=here)[3] == pytest.approx(0.4)
    assert capsys.readouterr().out == "[team] sent from the notebook: step, rate\n"
    team.run("step(rank) * rate", names=here)
    assert team.run("step(rank) * rate", names={**here, "rate": 0.2})[3] == pytest.approx(0.4)  # the ranks' own
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("x = x + 1", ["x"]),
        ("x = 1\nx + y", ["y"]),
        ("x += 1", ["x"]),
        ("for i in items: print(i)", ["items"]),
        ("import numpy as np\nnp.ones(n)", ["n"]),
        ("def f(a): return a + b\nf(c)", ["b", "c"]),
        ("with open(p) as file: text = file.read()", ["p"]),
        ("[i * k for i in range(3)]", ["k"]),
        ("class A(B):\n    def m(self): return D", ["B", "D"]),
    ],
)
def test_a_cell_needs_the_names_it_reads_before_it_assigns_them(code, used):
    assert names_in(code) == used


def test_values_of_several_lines_stand_side_by_side():
    assert side_by_side({0: "a\nbb", 1: "c"}) == "rank 0 | rank 1\na      | c\nbb     |"
    assert side_by_side({0: "a" * 70 + "\n", 2: "b" * 70 + "\nb"}).splitlines()[:2] == ["rank 0", "a" * 70]


def test_what_ranks_print_is_tagged(team, capsys):
    run = team.run("print('hello', flush=True)", [2])
    assert run.output == [(2, "hello")]
    assert "[rank 2] hello" in capsys.readouterr().out


def test_an_error_names_the_rank_and_the_cells_own_line(team):
    with pytest.raises(RankFailed) as caught:
        team.run("y = 1\nif rank == 2:\n    bad = 1 / 0\nafter = 2")
    assert caught.value.rank == 2
    assert isinstance(caught.value.exception, ZeroDivisionError)
    assert "line 3, in <module>\n    bad = 1 / 0" in str(caught.value)
    assert "course_lib" not in str(caught.value)
    assert "process group" not in str(caught.value)  # nobody waited, so it is the same one
    assert list(team.run("'after' in globals()")) == [True, True, False, True]


def test_an_error_of_all_ranks_names_them_and_their_group_stays(team):
    with pytest.raises(RankFailed, match=r"rank 0 raised NameError(?s:.*)ranks 1, 2 and 3 raised too") as caught:
        team.run("dist.all_reduce(x); nonsense")
    assert "process group" not in str(caught.value)


FAULTS = {
    "one raises": ("if rank == 3: raise ValueError('no data')\ndist.all_reduce(x)", RankFailed, "rank 3 raised Value"),
    "one skips": (
        "if rank != 2: dist.all_reduce(x)",
        RanksStuck,
        "ranks 0, 1 and 3 wait in all_reduce for rank 2, which has returned",
    ),
    "one does more": (
        "if rank == 2: dist.all_reduce(x)",
        RanksStuck,
        "rank 2 waits in all_reduce for ranks 0, 1 and 3, which have returned",
    ),
    "all receive": ("dist.recv(x, (rank + 1) % 4)", RanksStuck, "every rank waits in recv, and no rank sends"),
    "all send": ("dist.send(x, (rank + 1) % 4)", RanksStuck, "every rank waits in send, and no rank receives"),
    "recv without send": (
        "if rank == 1: dist.recv(x, 0)",
        RanksStuck,
        "rank 1 waits in recv for rank 0, which has returned",
    ),
    "another collective": (
        "dist.broadcast(x, 0) if rank == 2 else dist.all_reduce(x)",
        CollectivesDiffer,
        "rank 2 is the odd one out",
    ),
    "backward of DDP": (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))\nloss = model(x).sum()\n"
        "if rank != 1: loss.backward()",
        RanksStuck,
        "ranks 0, 2 and 3 wait in all_reduce for rank 1, which has returned",
    ),
    "a killed rank": (
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()",
        RankDied,
        "rank 1 was killed by SIGKILL",
    ),
    "another shape": (
        "dist.all_reduce(torch.ones(5) if rank == 2 else x)",
        CollectivesDiffer,
        "rank 2  all_reduce of float32 [5]",
    ),
    "another dtype": (
        "dist.all_reduce(x.int() if rank == 2 else x)",
        CollectivesDiffer,
        "rank 2  all_reduce of int32 [3]",
    ),
    "exit": ("if rank == 1: os._exit(3)\ndist.barrier()", RankDied, "rank 1 ended with exit code 3"),
    "segmentation fault": ("if rank == 1: ctypes.string_at(0)\ndist.barrier()", RankDied, "killed by SIGSEGV"),
    "a message that does not fit": (
        "dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(2), 0) if rank == 1 else None",
        CollectivesDiffer,
        "a message does not match its receive",
    ),
    "work begun earlier": (
        "if rank != 1:\n    work = dist.all_reduce(x, async_op=True)\n    work.wait()",
        RanksStuck,
        "rank 0  waits in all_reduce at",
    ),
}
IN_CORE = {"one raises", "one skips", "all receive", "another collective", "backward of DDP", "a killed rank"}


@pytest.mark.parametrize("name", [name if name in IN_CORE else pytest.param(name, marks=slow) for name in FAULTS])
def test_a_fault_is_named_as_by_launch_and_the_team_lives_on(team, name):
    code, kind, says = FAULTS[name]
    with pytest.raises(kind) as caught:
        team.run(code, timeout=None)
    assert says in str(caught.value)
    died = kind is RankDied or name == "a message that does not fit"  # there, gloo aborts the receiver
    assert keeps_x(team) == (not died)
    if died:
        assert str(caught.value).endswith(RESTARTED)
        assert ("before the cell ended" in str(caught.value)) == (kind is RankDied)
    else:
        remade = "The process group was aborted and recreated; all variables are kept" in str(caught.value)
        assert remade == (name != "another dtype")  # as many bytes, so that nobody waits


STUCK = {
    "endless loop": "while rank == 3: pass\ndist.barrier()",
    "sleep": "rank == 3 and time.sleep(9999)\ndist.barrier()",
    "stopped": "rank == 3 and os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()",
    "C holds the lock": "rank == 3 and sum(range(10**15))\ndist.barrier()",
}


@pytest.mark.parametrize("name", ["endless loop", *(pytest.param(name, marks=slow) for name in [*STUCK][1:])])
def test_a_rank_that_does_not_come_is_named_after_the_timeout(team, name):
    with pytest.raises(RanksStuck) as caught:
        team.run(STUCK[name], timeout=2)
    assert caught.value.odd == (3,)
    assert "not finished after 2 s; rank 3 is the odd one out" in str(caught.value)
    assert keeps_x(team) == (name != "C holds the lock")  # no signal reaches it there


@slow
@pytest.mark.parametrize("call", ["dist.broadcast(x, 3)", "dist.all_reduce(x)"])
def test_a_rank_that_is_stopped_between_collectives_is_kept(team, call):
    stop = "import threading\nrank == 3 and threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()\n"
    for _ in range(5):
        with pytest.raises(RanksStuck, match="rank 3 is the odd one out"):
            team.run(f"{stop}while True: {call}", timeout=1)
        assert keeps_x(team)


def test_ranks_that_do_not_run_a_cell_cannot_be_waited_for(team):
    with pytest.raises(RanksStuck, match="ranks 0 and 1 wait in all_reduce for ranks 2 and 3, which do not run this"):
        team.run("dist.all_reduce(x)", [0, 1], timeout=None)


def test_a_message_can_cross_two_cells(team):
    team.run("work = dist.isend(x * 7, 1)", 0)
    assert team.run("dist.recv(x, 0); int(x[0])", 1)[1] == 7
    team.run("work.wait()", 0)


def test_after_the_death_of_a_rank_all_ranks_are_new(team):
    with pytest.raises(RankDied, match=r"rank 2 ended with exit code 1 before the cell ended(?s:.*)All ranks were res"):
        team.run("rank == 2 and os._exit(1)")
    assert list(team.run("'x' in globals()")) == [False] * 4


def dies_on_rank_1(rank, *_):
    if rank.process.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_dies_while_the_others_come_back_from_a_fault_is_replaced(team, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "report_names", dies_on_rank_1)
        with pytest.raises(RankFailed, match=r"rank 0 raised ValueError(?s:.*)All ranks were restarted"):
            team.run("if rank == 0: raise ValueError('no data')")


def test_a_rank_that_dies_between_cells_is_noticed(team):
    victim = team.run("os.getpid()", 1)[1]
    os.kill(victim, signal.SIGKILL)
    assert wait_until(lambda: not Path(f"/proc/{victim}/exe").exists())
    with pytest.raises(LaunchError, match=r"ank 1 (?s:.*)All ranks were restarted, so their variables are lost"):
        team.run("rank")


def test_a_rank_that_dies_after_its_cell_is_noticed_by_the_next_one(team):
    team.run("import threading\nif rank == 1: threading.Timer(0.2, os._exit, (3,)).start()")
    team.run("time.sleep(1.5)", [0])
    with pytest.raises(LaunchError, match=r"rank 1 ended after the last cell\. All ranks were restarted"):
        team.run("rank")


@pytest.mark.parametrize(("failures", "ends"), [(1, RESTARTED), (2, LOST)])
def test_ranks_that_do_not_start_again_at_once_do_not_hide_why_the_old_ones_ended(monkeypatch, failures, ends):
    with ranks(2) as team, monkeypatch.context() as patch:
        really_start, starts = team._start, iter(range(9))
        monkeypatch.setattr(team_module, "RESTART_AFTER", (0, 0))

        def start() -> None:
            if next(starts) < failures:
                raise LaunchError("rank 0 raised AcceleratorError: the device is busy")
            really_start()

        patch.setattr(team, "_start", start)
        with pytest.raises(RankDied, match="rank 1 was killed by SIGKILL") as caught:
            team.run("import os\nif rank == 1: os.kill(os.getpid(), 9)")
        assert str(caught.value).endswith(ends)
        assert team.is_closed == (ends == LOST)


def test_a_restart_takes_the_variables(team):
    team.restart()
    assert list(team.run("'x' in globals()")) == [False] * 4


def test_a_wrapper_of_an_aborted_group_says_that_it_must_be_made_again(team):
    team.run("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))")
    with pytest.raises(RanksStuck, match="must be recreated, too: a model wrapped in DistributedDataParallel"):
        team.run("if rank: dist.barrier()")
    with pytest.raises(RankFailed, match="usually belongs to a group from before the process group was last recreated"):
        team.run("model(x).sum().backward()")
    team.run("model = torch.nn.parallel.DistributedDataParallel(model.module); model(x).sum().backward()")


SLOW_TO_LEAVE = """
import datetime, time
store, destroy, seen = dist.distributed_c10d._get_default_store(), dist.destroy_process_group, []
store.set_timeout(datetime.timedelta(seconds=1))
def leave(*arguments):
    time.sleep(0.5)
    seen.append(store.check(["a key"]))  # as NCCL's heartbeat monitor does, until its group is destroyed
    destroy(*arguments)
if rank == 1:
    dist.destroy_process_group = leave
"""


def test_a_group_that_is_left_late_still_has_its_store(team):
    team.run(SLOW_TO_LEAVE)
    with pytest.raises(RanksStuck, match="all variables are kept"):
        team.run("if rank: dist.barrier()")
    team.run("dist.destroy_process_group = destroy")
    assert team.pull("seen", [1]) == [[False]]


def test_the_timeline_of_the_last_cell_can_be_drawn(team):

    team.run(
        "from course_lib import trace\n"
        "with trace.span('send', peer=(rank + 1) % 4), trace.span('receive', peer=(rank - 1) % 4):\n"
        "    work = dist.isend(x, (rank + 1) % 4)\n    dist.recv(torch.empty(3), (rank - 1) % 4)\n    work.wait()"
    )
    assert "Messages between 4 ranks: 4, over the links 0 to 1" in draw_messages(team).alt
    assert draw_timeline(team).alt
    assert {span.rank for span in team.last.spans} == {0, 1, 2, 3}
    team.run("dist.all_reduce(x)")
    assert len(team.last.collectives) == 4
    assert team.last.spans == []
