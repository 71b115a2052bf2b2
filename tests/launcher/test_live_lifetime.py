"""Live ranks from start to end: how they leave a cell that fails, and that a team leaves nothing behind."""

from __future__ import annotations

import gc
import os
import random
from typing import ClassVar

import pytest

from course_lib import LaunchError, ranks
from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.hangs.stacks import Where
from course_lib.launcher.live.team import leave_task
from course_lib.launcher.notebook.listener import Listener
from course_lib.launcher.wire.messages import LOCATE, Interrupt, Located, Raised
from course_lib.runtime.patience import descendants
from tests.conftest import PATIENCE, wait_until
from tests.launcher.test_live import FAULTS, STUCK

slow = pytest.mark.slow


def test_the_process_group_is_not_aborted_before_every_rank_was_interrupted_and_has_answered():
    class Supervisor:
        orders: ClassVar[list] = []
        waiting: ClassVar[list] = []

        def send(self, order):
            self.orders.append(order)
            if order == LOCATE:
                self.waiting += [Located(rank, Where("waiting"), RankRecord(), 1) for rank in range(2)]
            elif order == Interrupt(abort=True):
                self.waiting += [Raised(rank, 0.0, "Error", "", [], None, [], RankRecord(), 1) for rank in range(2)]

        def poll(self, timeout):
            return bool(self.waiting)

        def recv(self):
            return self.waiting.pop(0)

    assert not leave_task(Listener(Supervisor(), 2, None, task=1))
    assert Supervisor.orders == [Interrupt(abort=False), LOCATE, Interrupt(abort=True)]


def test_code_that_is_no_text_and_a_closed_team_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="ranks=0: a launch needs at least one rank"):
        ranks(0)
    with ranks(1) as team, pytest.raises(TypeError, match=r"team\.run takes code as text"):
        team.run(print)
    with pytest.raises(LaunchError, match="this team is closed"):
        team.run("1")
    assert repr(team) == "Team of 1 rank, closed"


def test_a_team_that_is_closed_or_forgotten_or_idle_leaves_nothing():
    ranks(1).close()  # starts the fork server
    gc.collect()
    before, files = _processes(), _files()
    teams = [ranks(2), ranks(2), ranks(2, idle=0.3)]
    teams[0].close()
    del teams[1]
    gc.collect()
    idle = teams[1]
    assert wait_until(lambda: _processes() <= before, PATIENCE), _processes() - before
    with pytest.raises(LaunchError, match=r"idle for 0.3 s, so they were ended and their variables are lost"):
        idle.run("1")
    idle.restart()
    assert list(idle.run("rank")) == [0, 1]
    idle.close()
    assert wait_until(lambda: _processes() <= before and _files() <= files, PATIENCE), (_processes(), _files())


@slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cells", [500])
def test_many_cells_of_which_one_in_five_fails_leave_no_growth(cells):
    """Counted are files and threads of the ranks and files of the supervisor, in the first half and at the end."""
    chance = random.Random(7)
    before = _processes()
    places = "('self/fd', 'self/task', f'{os.getppid()}/fd')"  # the last one is the supervisor's
    count = f"import os; dist.barrier(); [len(os.listdir(f'/proc/{{each}}')) for each in {places}]"
    faults = [code for name, (code, *_) in FAULTS.items() if name not in ("backward of DDP", "segmentation fault")]
    hangs = [STUCK[name] for name in ("endless loop", "sleep", "stopped")] * (cells > 100)
    with ranks(2) as team:
        team.run("import ctypes, os, signal, time; x = torch.ones(3)")
        sizes, failed = [], 0
        for number in range(cells):
            if number % 5 == 3:
                code = chance.choice([*faults, *hangs]).replace("rank == 3", "rank == 1").replace("% 4", "% 2")
                code = code.replace("rank != 2", "rank != 1").replace("rank == 2", "rank == 1")
                try:
                    team.run(code, timeout=1)
                except LaunchError:
                    failed += 1
                team.run("import ctypes, os, signal, time; x = torch.ones(3)")
            else:
                assert list(team.run(f"dist.all_reduce(torch.ones(9)); {number}")) == [number, number]
            if number % 5 == 4:
                sizes.append([number for one in team.run(count) for number in one])
        assert failed == cells // 5
        early, late = (max(map(max, part)) for part in (sizes[: len(sizes) // 2], sizes[-len(sizes) // 4 :]))
        assert late <= early + 8, sizes  # a rank that was started again begins with the files of its supervisor
    assert wait_until(lambda: _processes() <= before, PATIENCE), _processes() - before


def _processes() -> set[int]:
    """The processes that descend from the fork server of this process."""
    from multiprocessing import forkserver

    return set(descendants(forkserver._forkserver._forkserver_pid))


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))
