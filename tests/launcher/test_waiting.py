"""While a launch takes long: a line that says who waits where, bars that move, an interrupt that explains itself."""

from __future__ import annotations

import io
import os

import pytest

from course_lib.launcher.hangs.errors import in_one_line
from course_lib.launcher.hangs.stacks import Frame, Where
from course_lib.launcher.notebook.progress_bar import LiveLine
from course_lib.launcher.supervisor.supervisor import LineReader

SOON = "from course_lib.launcher.notebook import listener\nlistener.QUIET = listener.LOOK_EVERY = 0.2"
ONE_DOES_NOT_COME = """def train():
    if dist.get_rank() == 0:
        time.sleep(9999)
    dist.barrier()
launch(train, ranks=3, timeout=None)
"""
A_BAR = """def train():
    for percent in range(0, 100, 10):
        print(f"\\r{percent}% of it", end="", flush=True)
        time.sleep(0.3)
    print("\\rall of it")
    return 7
launch(train, ranks=1)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ranks_that_do_the_same_are_named_together():
    waits = Where("waiting", "all_reduce", Frame("<cell>", 4, "train"))
    where = {0: waits, 1: Where("running", None, Frame("<cell>", 2, "train")), 2: waits, 3: Where("returned")}
    told = "ranks 0 and 2: waiting in all_reduce (line 4), rank 1: running (line 2), rank 3: done"
    assert in_one_line(where) == told


def test_in_a_terminal_the_line_is_overwritten_and_cleared(monkeypatch):
    monkeypatch.delenv("COURSE_LIB_LIVE", raising=False)
    terminal = Terminal()
    line = LiveLine(terminal)
    line.show("a long line")
    line.show("short")
    line.clear()
    line.clear()
    assert terminal.getvalue() == "\ra long line" + "\rshort      " + "\r     \r"


def test_a_line_that_an_interrupt_has_cut_short_is_cleared_all_the_same(monkeypatch):
    monkeypatch.delenv("COURSE_LIB_LIVE", raising=False)
    terminal = Terminal()

    def interrupted() -> None:
        monkeypatch.undo()
        monkeypatch.delenv("COURSE_LIB_LIVE", raising=False)
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "flush", interrupted)
    line = LiveLine(terminal)
    with pytest.raises(KeyboardInterrupt):
        line.show("half of it")
    line.clear()
    assert terminal.getvalue() == "\rhalf of it" + "\r          \r"


def test_in_a_file_and_where_it_is_switched_off_nothing_is_shown(monkeypatch):
    file, terminal = io.StringIO(), Terminal()
    LiveLine(file).show("something")
    monkeypatch.setenv("COURSE_LIB_LIVE", "0")
    LiveLine(terminal).show("something")
    assert file.getvalue() == terminal.getvalue() == ""


def test_of_a_line_that_has_not_ended_only_what_a_terminal_would_show_is_shown():
    reader, writer = os.pipe()

    class Pipe:
        fileno = staticmethod(lambda: reader)

    lines = LineReader(Pipe())  # pyright: ignore[reportArgumentType]
    os.write(writer, b"whole\n 10%\r 20%\r 30%")
    assert (lines.read(), lines.unfinished()) == (["whole"], " 30%")
    os.write(writer, b"\r done\n")
    assert (lines.read(), lines.unfinished()) == ([" done"], "")
    for end in (reader, writer):
        os.close(end)


@pytest.mark.slow
def test_a_launch_that_has_been_quiet_says_who_waits_where_and_an_interrupt_says_it_again(kernel):
    kernel.run(SOON)
    request = kernel.start(ONE_DOES_NOT_COME)
    seen = kernel.finish(request, until="ranks 1 and 2: waiting in barrier (line 4)")
    assert "rank 0: running (line 3)" in seen.shown[-1]
    kernel.manager.interrupt_kernel()
    cell = kernel.finish(request)
    assert cell.shown[-1] == "", "the line is gone"
    assert cell.error == "Interrupted"
    assert "KeyboardInterrupt: interrupted after" in cell.message
    assert "rank 0  is running at Cell In[" in cell.message
    assert "rank 2  waits in barrier at Cell In[" in cell.message
    assert ".py" not in cell.message, "no frame of ours, nor of PyTorch's"


@pytest.mark.slow
def test_a_bar_that_a_rank_draws_is_shown_as_it_moves(kernel):
    cell = kernel.run(A_BAR)
    moving = [shown for shown in cell.shown if "% of it" in shown]
    assert len(moving) > 1
    assert all("[rank 0] " in shown for shown in moving)
    assert cell.shown[-1] == ""
    assert cell.text.endswith("[rank 0] all of it\n")
