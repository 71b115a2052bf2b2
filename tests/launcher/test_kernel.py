"""A launch and the notebook's kernel: interrupts, kills, restarts, threads, and what the kernel did before."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.conftest import PATIENCE, Kernel, parent_of, ranks_of, wait_until

IMPORTS = "import os, signal, time, threading, torch, torch.distributed as dist\nfrom course_lib import *"
# All but one wait for it, and it does not come.
DEADLOCK = (
    "def train():\n    dist.get_rank() or time.sleep(9999)\n    dist.barrier()\nlaunch(train, ranks=4, timeout=None)"
)
DEADLOCK_WITH_CHILDREN = DEADLOCK.replace("    ", "    __import__('subprocess').Popen(['sleep', '600'])\n    ", 1)
COMPUTE = (
    "def train():\n    while True: torch.ones(200, 200) @ torch.ones(200, 200)\nlaunch(train, ranks=4, timeout=None)"
)


def begin(kernel: Kernel, code: str) -> str:
    """Start a cell and wait until its four ranks and their supervisor are up."""
    request = kernel.start(code)
    assert wait_until(lambda: len(ranks_of(kernel.family())) >= 5, PATIENCE)
    time.sleep(0.5)
    return request


@pytest.mark.parametrize(
    "code", [pytest.param(COMPUTE, id="computing", marks=pytest.mark.slow), pytest.param(DEADLOCK, id="deadlocked")]
)
def test_an_interrupt_stops_the_ranks(kernel, code):
    request = begin(kernel, code)
    kernel.manager.interrupt_kernel()
    cell = kernel.finish(request)
    assert cell.error == "Interrupted"
    assert not ranks_of(kernel.family())
    assert kernel.run("launch(dist.get_rank, ranks=2)").result == "Run of 2 ranks: [0, 1]"


@pytest.mark.slow
def test_an_interrupt_before_the_ranks_have_started_is_survived_too(new_kernel):
    request = new_kernel.start(f"{IMPORTS}\nlaunch(dist.get_rank, ranks=4)")
    assert wait_until(lambda: any("forkserver" in line for line in new_kernel.family().values()), PATIENCE)
    time.sleep(1.5)  # the kernel has imported torch, the server has not
    new_kernel.manager.interrupt_kernel()
    assert new_kernel.finish(request).error in ("KeyboardInterrupt", "Interrupted", None)
    cell = new_kernel.run(f"{IMPORTS}\nlaunch(dist.get_rank, ranks=2)")
    assert cell.result == "Run of 2 ranks: [0, 1]", cell.message


@pytest.mark.slow
@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["kernel", "group"])
def test_nothing_outlives_a_kernel_that_is_killed(new_kernel, kill):
    new_kernel.run(IMPORTS)
    begin(new_kernel, DEADLOCK_WITH_CHILDREN)
    kill(new_kernel.pid, signal.SIGKILL)
    assert wait_until(lambda: not new_kernel.family(), PATIENCE), new_kernel.family()


@pytest.mark.slow
def test_a_restart_leaves_nothing_and_the_new_kernel_launches(new_kernel):
    new_kernel.run(IMPORTS)
    begin(new_kernel, DEADLOCK_WITH_CHILDREN)
    old = set(new_kernel.family())
    new_kernel.manager.restart_kernel(now=True)
    assert wait_until(lambda: not old & set(new_kernel.family()), PATIENCE), new_kernel.family()
    new_kernel.client.wait_for_ready(timeout=PATIENCE)
    new_kernel.run(IMPORTS)
    assert new_kernel.run("launch(dist.get_rank, ranks=2)").result == "Run of 2 ranks: [0, 1]"


def test_ranks_do_not_outlive_a_supervisor_that_is_killed(kernel):
    request = begin(kernel, DEADLOCK)
    family = kernel.family()
    (server,) = [pid for pid, line in family.items() if "forkserver" in line and parent_of(pid) == kernel.pid]
    (supervisor,) = [pid for pid in family if parent_of(pid) == server]
    os.kill(supervisor, signal.SIGKILL)
    assert kernel.finish(request).error == "LaunchError"
    assert wait_until(lambda: not ranks_of(kernel.family()), PATIENCE)


@pytest.mark.slow
def test_a_killed_server_is_replaced(new_kernel):
    new_kernel.run(IMPORTS)
    new_kernel.run("launch(dist.get_rank, ranks=2)")
    (server,) = [pid for pid, line in new_kernel.family().items() if "multiprocessing.forkserver" in line]
    os.kill(server, signal.SIGKILL)
    assert new_kernel.run("launch(dist.get_rank, ranks=2)").result == "Run of 2 ranks: [0, 1]"


def test_a_kernel_that_has_trained_a_model_can_launch(kernel):
    cell = kernel.run(
        """
lstm = torch.nn.LSTM(8, 32, num_layers=2)
lstm(torch.randn(50, 16, 8))[0].sum().backward()
def train():
    lstm(torch.randn(50, 16, 8))[0].sum().backward()
    total = torch.stack([p.grad.sum() for p in lstm.parameters()])
    dist.all_reduce(total)
    return total.isfinite().all().item()
launch(train, ranks=4)
"""
    )
    assert cell.result == "Run of 4 ranks: [True, True, True, True]", cell.message


def test_two_threads_can_launch_at_once(kernel):
    cell = kernel.run(
        """
import threading
results = {}
def go(k):
    results[k] = [list(launch(lambda: k * 10 + dist.get_rank(), ranks=2)) for _ in range(5)]
threads = [threading.Thread(target=go, args=(k,)) for k in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(results == {k: [[k * 10, k * 10 + 1]] * 5 for k in range(3)})
"""
    )
    assert cell.text == "True\n", cell.message


@pytest.mark.slow
def test_two_kernels_can_launch_at_once(kernel, new_kernel):
    new_kernel.run(IMPORTS)
    code = "[list(launch(dist.get_rank, ranks=4)) for _ in range(5)] == [[0, 1, 2, 3]] * 5"
    requests = [(each, each.start(code)) for each in (kernel, new_kernel)]
    assert [each.finish(request).result for each, request in requests] == ["True", "True"]


def test_the_server_is_warm_before_the_first_launch(new_kernel):
    new_kernel.run("import course_lib")
    assert wait_until(lambda: any("forkserver" in line for line in new_kernel.family().values()), PATIENCE)


def test_a_function_that_reads_its_command_line_finds_nothing_of_the_kernels(kernel):
    cell = kernel.run(
        "def look():\n    import sys\n    return len(sys.argv)\nprint(len(sys.argv), launch(look, ranks=1)[0])"
    )
    assert cell.text == "3 1\n", cell.text + cell.message
