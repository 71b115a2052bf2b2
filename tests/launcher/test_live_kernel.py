"""`%%ranks` in a real kernel: cells, their own lines, interrupts, and what a kernel leaves behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import PATIENCE, Kernel, ranks_of, wait_until

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def notebook(kernel: Kernel) -> Kernel:
    """A kernel with two live ranks."""
    cell = kernel.run("%load_ext course_lib")
    assert cell.error is None, cell.message
    cell = kernel.run("%%ranks 2\nimport time\nx = torch.ones(2) * rank\nx")
    assert cell.result == "rank 0  tensor([0., 0.])\nrank 1  tensor([1., 1.])", cell.message
    return kernel


def begin_and_wait(notebook: Kernel, cell: str) -> str:
    """Begin a cell, and return when rank 1 has come to its `print`."""
    request = notebook.start(cell)
    while True:
        message = notebook.client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and "here" in message["content"]["text"]:
            return request


def test_the_ranks_are_the_notebooks_team(notebook):
    assert notebook.run("team").result == "Team of 2 ranks; on rank 0: time, x"
    assert notebook.run("team[1]['x'].tolist()").result == "[1.0, 1.0]"
    assert notebook.run("%ranks").result == "Team of 2 ranks; on rank 0: time, x"


def test_a_cell_runs_on_some_of_them(notebook):
    assert notebook.run("%%rank 1\nrank").result == "rank 1  1"
    assert notebook.run("%%ranks 0,1\nrank").result == "rank 0  0\nrank 1  1"
    assert notebook.run("%%ranks 0-1 --timeout 30\nrank").result == "rank 0  0\nrank 1  1"
    assert notebook.run("%%ranks\ny = 1").result == ""


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%ranks 4\n1", "this team has 2 ranks. %%rank 4 runs the cell on rank 4"),
        ("%%ranks some\n1", "write %%ranks 4 for all four ranks"),
        ("%%ranks --timeout soon\n1", "--timeout soon: give a number of seconds"),
        ("%ranks stop", "%ranks restart, %ranks close"),
        ("%%rank 7\n1", "this team has the ranks 0 to 1"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(notebook, cell, says):
    told = notebook.run(cell)
    assert says in told.text + told.message


def test_the_error_shows_the_cells_own_line_and_the_team_lives_on(notebook):
    cell = notebook.run("%%ranks\ny = 1\nif rank == 1:\n    bad = 1 / 0")
    assert cell.error == "RankFailed"
    assert "rank 1 raised ZeroDivisionError: division by zero" in cell.message
    before = int(notebook.run("len(In) - 1").result)
    assert f"Cell In[{before - 1}]" in cell.message
    assert "line 4, in <module>\n    bad = 1 / 0" in cell.message
    assert "/" not in cell.message.replace("1 / 0", "")
    cell = notebook.run("%%ranks\nif rank == 0:\n    dist.barrier()")
    assert cell.error == "RanksStuck"
    assert "line 3: dist.barrier()" in cell.message
    assert notebook.run("%%ranks\ndist.barrier(); x[0].item()").result == "rank 0  0.0\nrank 1  1.0"


def test_a_syntax_error_is_the_notebooks(notebook):
    cell = notebook.run("%%ranks\nif rank\n    1")
    assert cell.error == "SyntaxError"
    assert "line 2" in cell.message


def test_the_notebooks_values_are_sent_along(notebook):
    notebook.run("import numpy as np\nclass Scale:\n    def __init__(self, by): self.by = by\ntwice = Scale(2)")
    cell = notebook.run("%%ranks\nnp.float64(rank) * twice.by")
    assert cell.text == "[team] sent from the notebook: np, twice\n"
    assert cell.result == "rank 0  np.float64(0.0)\nrank 1  np.float64(2.0)"


WAITS = "%%ranks\nprint('here', flush=True) if rank == 1 else None\n"


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "time.sleep(9999) if rank else dist.barrier()"],
    ids=["all compute", "one sleeps, one waits"],
)
def test_an_interrupt_stops_the_cell_and_keeps_the_variables(notebook, body):
    request = begin_and_wait(notebook, WAITS + body)
    notebook.manager.interrupt_kernel()
    cell = notebook.finish(request)
    assert cell.error == "Interrupted"
    assert "the cell was stopped on all ranks" in cell.message
    assert "line 3: " in cell.message
    assert notebook.run("%%ranks\ndist.barrier(); x[0].item()").result == "rank 0  0.0\nrank 1  1.0"


@slow
@pytest.mark.parametrize("end", ["kill", "restart", "shutdown"])
def test_the_ranks_end_with_the_kernel(new_kernel, end):
    new_kernel.run("%load_ext course_lib")
    begin_and_wait(new_kernel, "%%ranks 2\nimport time\n" + WAITS.partition("\n")[2] + "time.sleep(9999)")
    old = set(new_kernel.family())
    assert ranks_of(new_kernel.family())
    if end == "kill":
        os.kill(new_kernel.pid, signal.SIGKILL)
    elif end == "restart":
        new_kernel.manager.restart_kernel(now=True)
    else:
        new_kernel.manager.shutdown_kernel()
    assert wait_until(lambda: not old & set(new_kernel.family()), PATIENCE), new_kernel.family()


def test_closed_ranks_are_gone_and_the_next_cell_starts_new_ones(notebook):
    notebook.run("team.close()")
    assert wait_until(lambda: not ranks_of(notebook.family()), PATIENCE)
    cell = notebook.run("%%ranks 2\n'x' in globals()")
    assert cell.text == "[team] 2 new ranks; the variables of the previous ones are lost\n"
    assert cell.result == "rank 0  False\nrank 1  False"
    notebook.run("%ranks close")
    assert "there are no ranks yet: %%ranks 4 starts four" in notebook.run("%%ranks\n1").text
    assert wait_until(lambda: not ranks_of(notebook.family()), PATIENCE)
