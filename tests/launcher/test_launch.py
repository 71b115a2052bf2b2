"""What a launch promises when nothing goes wrong."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from course_lib import CollectivesDiffer, LaunchError, RankDied, RankFailed, device, launch, trace
from course_lib.launcher.hangs import flight_recorder
from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.notebook import launch as local
from course_lib.launcher.notebook import listener
from course_lib.launcher.notebook.blame import verdict
from course_lib.launcher.wire.messages import Died, Raised
from course_lib.runtime.machine import cores


def test_a_run_is_the_sequence_of_what_the_ranks_returned():
    run = launch(lambda: dist.get_rank() ** 2, ranks=4)
    assert list(run) == [0, 1, 4, 9]
    assert run[2] == 4
    assert run[-1] == 9
    assert len(run) == 4


def test_the_process_group_is_up_and_threads_share_the_cores():
    def look():
        total = torch.tensor([dist.get_rank()])
        dist.all_reduce(total)
        return dist.get_backend(), dist.get_world_size(), total.item(), torch.get_num_threads(), device().type

    assert list(launch(look, ranks=4)) == [("gloo", 4, 6, max(1, cores() // 4), device().type)] * 4


def test_a_closure_takes_what_it_closes_over_and_arguments_along():
    weight = torch.arange(3.0)

    def scale(factor, *, bias):
        return weight * factor + bias + dist.get_rank()

    run = launch(scale, 2, bias=10, ranks=2)
    assert run[1].tolist() == [11.0, 13.0, 15.0]


def test_a_tensor_that_requires_grad_travels_both_ways():
    x = torch.ones(2, requires_grad=True)
    run = launch(lambda: (x * 3, x), ranks=2)
    assert run[0][0].tolist() == [3.0, 3.0]
    assert run[0][1].requires_grad


def test_an_instance_of_a_local_class_comes_back_as_the_same_class():
    class Metric:
        def __init__(self, value):
            self.value = value

    run = launch(lambda: Metric(dist.get_rank()), ranks=2)
    assert type(run[1]) is Metric
    assert run[1].value == 1


def test_ranks_see_the_environment_and_folder_of_now(monkeypatch, tmp_path):
    launch(dist.get_rank, ranks=1)  # the server is up, with an older environment
    monkeypatch.setenv("COURSE_TEST_COLOUR", "green")
    monkeypatch.chdir(tmp_path)
    assert launch(lambda: (os.environ["COURSE_TEST_COLOUR"], os.getcwd()), ranks=1)[0] == ("green", str(tmp_path))


def test_lines_are_tagged_and_printed_here(capsys):
    run = launch(lambda: print("one\ntwo"), ranks=2)
    assert sorted(run.output) == [(0, "one"), (0, "two"), (1, "one"), (1, "two")]
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[rank 0] one",
        "[rank 0] two",
        "[rank 1] one",
        "[rank 1] two",
    ]


def test_every_way_of_printing_arrives_whole_and_once():
    def talk():
        print("from print")
        print("from stderr", file=sys.stderr)
        logging.getLogger("lesson").warning("from logging")
        os.write(1, b"from write\n")
        os.write(1, b"bad \xff byte\n")
        subprocess.run(["echo", "from a child"], check=True)
        print("10%\r50%\r100%")
        print("no newline", end="")

    output = [line for _, line in launch(talk, ranks=1).output]
    expected = ["from print", "from stderr", "from logging", "from write", "bad \\xff byte", "from a child"]
    assert sorted(output) == sorted([*expected, "100%", "no newline"])


def test_lines_of_ranks_that_print_at_once_do_not_mix():
    def shout():
        for number in range(2000):
            print(f"{dist.get_rank()}:{number}:" + str(dist.get_rank()) * 200)

    run = launch(shout, ranks=4)
    for rank in range(4):
        lines = [line for speaker, line in run.output if speaker == rank]
        assert lines == [f"{rank}:{number}:" + str(rank) * 200 for number in range(2000)]


def test_a_hundred_thousand_lines_are_kept_but_not_all_shown(capsys):
    def count():
        for number in range(50_000):
            print(number)

    run = launch(count, ranks=2)
    shown = capsys.readouterr().out.splitlines()
    assert len(run.output) == 100_000
    assert [int(line) for rank, line in run.output if rank == 1] == list(range(50_000))
    assert len(shown) == listener.MAX_LINES_SHOWN + 1
    assert shown[-1] == "[launch] 99,000 more lines are in run.output (error.output if the launch failed)"


def test_endless_output_is_dropped_in_time_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr(listener, "MAX_OUTPUT_BYTES", 1000)
    run = launch(lambda: [print("x" * 100) for _ in range(100)] and None, ranks=1)
    assert len(run.output) == 10
    assert "90 lines were dropped" in capsys.readouterr().out


def test_spans_come_back_on_one_clock():
    def work():
        with trace.span("forward", at_least=0.05):
            pass
        with trace.span("backward"):
            time.sleep(0.02)

    run = launch(work, ranks=3)
    assert [(span.rank, span.name, span.paced) for span in run.spans] == [
        (rank, name, name == "forward") for rank in range(3) for name in ("forward", "backward")
    ]
    assert all(0 <= span.start <= span.end <= run.seconds + 1e-3 for span in run.spans)
    assert all(span.seconds >= 0.05 for span in run.spans if span.name == "forward")
    assert run.seconds >= 0.07


def test_paced_spans_overlap_though_there_are_more_ranks_than_cores():
    def work():
        with trace.span("forward", at_least=0.3):
            pass

    run = launch(work, ranks=4 * cores())
    assert max(span.start for span in run.spans) < min(span.end for span in run.spans)


def test_a_failed_launch_keeps_output_and_spans():
    def work():
        with trace.span("forward"):
            print("before")
        raise ValueError("after")

    with pytest.raises(LaunchError) as caught:
        launch(work, ranks=1)
    assert caught.value.output == [(0, "before")]
    assert [span.name for span in caught.value.spans] == ["forward"]


def test_a_rank_can_be_interrupted_though_its_server_is_not():
    assert not launch(lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set()), ranks=1)[0]


@pytest.mark.slow
def test_where_there_is_no_fork_ranks_are_spawned(monkeypatch):
    monkeypatch.setenv("COURSE_LIB_START_METHOD", "spawn")

    def work():
        print("hello")
        total = torch.tensor([dist.get_rank()])
        dist.all_reduce(total)
        return total.item()

    run = launch(work, ranks=2)
    assert list(run) == [1, 1]
    assert sorted(run.output) == [(0, "hello"), (1, "hello")]


def test_collectives_that_may_be_uneven_are_not_accused():
    def work():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        gathered = [None] * ranks
        dist.all_gather_object(gathered, "x" * rank)
        dist.gather_object("y" * rank, gathered if rank == 0 else None)
        dist.broadcast_object_list(gathered)
        dist.scatter(torch.ones(1), list(torch.ones(ranks, 1)) if rank == 1 else None, src=1)
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.all_reduce(torch.ones(2 + rank // 2), group=pairs[rank // 2])  # another shape in another group
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.LSTM(2, 3))
        model(torch.ones(4, 1, 2))[0].sum().backward()
        dist.monitored_barrier()
        return gathered[1]

    assert list(launch(work, ranks=4)) == ["y"] * 4


def test_a_wrong_dtype_that_gloo_does_not_notice_is_still_an_error():
    def work():
        x = torch.ones(3, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
        dist.all_reduce(x)
        return x.tolist()

    with pytest.raises(CollectivesDiffer) as caught:
        launch(work, ranks=3)
    assert caught.value.rank == 1
    assert caught.value.calls[1] == "all_reduce of int32 [3]"


def test_one_launch_at_a_time_hides_the_main_module():
    entered = threading.Event()

    def enter():
        with local.main_module_hidden():
            entered.set()

    with local.main_module_hidden():
        assert "__file__" not in vars(sys.modules["__main__"])
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.2)
    other.join()
    assert entered.is_set()


def test_an_error_after_a_wrong_collective_does_not_hide_it():
    def work():
        x = torch.ones(3, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
        dist.all_reduce(x)
        assert x.sum() == 9, "the sum is wrong"

    with pytest.raises(CollectivesDiffer) as caught:
        launch(work, ranks=3)
    assert caught.value.rank == 1
    assert "then raised AssertionError: the sum is wrong" in str(caught.value)


def test_a_rank_that_went_on_after_a_wrong_collective_is_not_said_to_be_in_it():
    def work():
        x = torch.ones(3, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
        dist.all_reduce(x)
        dist.recv(x, (dist.get_rank() + 1) % 3)

    with pytest.raises(CollectivesDiffer) as caught:
        launch(work, ranks=3)
    rows = [line for line in str(caught.value).splitlines() if line.startswith("  rank")]
    assert all("  now at " in row and row.endswith(": dist.recv(x, (dist.get_rank() + 1) % 3)") for row in rows), rows


def test_a_rank_inside_a_wrong_collective_is_said_to_be_there():
    def work():
        if dist.get_rank() == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(3))

    with pytest.raises(CollectivesDiffer) as caught:
        launch(work, ranks=3)
    assert "now at" not in str(caught.value)
    assert ": dist.barrier()" in str(caught.value)


@pytest.mark.parametrize("absent", [(1,), (1, 3)])
def test_after_a_monitored_barrier_the_rank_that_knows_who_is_missing_speaks(absent):
    def work():
        if dist.get_rank() not in absent:
            dist.monitored_barrier(dist.new_group(backend="gloo"), timedelta(seconds=0.5), wait_all_ranks=True)
        else:
            dist.new_group(backend="gloo")

    with pytest.raises(RankFailed) as caught:
        launch(work, ranks=4)
    assert caught.value.rank == 0
    assert re.search(f"Ranks? {', '.join(map(str, absent))} failed to pass", str(caught.value))


def raised(rank, at, name, text):
    return Raised(rank, at, name, text, stack=[], exception=None, spans=[], record=RankRecord())


def test_an_error_of_a_ranks_own_comes_before_a_monitored_barrier_that_missed_it():
    barrier = raised(0, 1.0, "RuntimeError", "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 500 ms")
    assert verdict([barrier, raised(1, 1.1, "ValueError", "no data")], died=[], located={}).rank == 1


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:42871",
        "[gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:42871: Connection reset by peer",
        "NCCL communicator was aborted on rank 0. NCCL error: remote error, ncclRemoteError",
        "Collective ops is aborted by: Socket closed\nAdditional GRPC error information from remote target /job:worker",
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:35471",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:worker/task:1",
    ],
)
def test_the_rank_that_died_is_named_though_another_noticed_it_first(text):
    survivor, victim = raised(0, 1.0, "RuntimeError", text), Died(1, 3, stack=[], at=1.1)
    blamed = verdict([survivor], [victim], located={})
    assert isinstance(blamed, RankDied)
    assert (blamed.rank, blamed.exitcode) == (1, 3)


def test_pytorchs_own_comparison_is_not_taken_for_the_learners_calls(monkeypatch):
    def work():
        x = torch.ones(3)
        for _ in range(100):
            dist.all_reduce(x)
        before = len(flight_recorder.entries())
        time.sleep(1.0 if dist.get_rank() == 1 else 0.0)  # the others wait, and say so
        dist.all_reduce(x)
        return before

    assert list(launch(work, ranks=3)) == [100] * 3
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert list(launch(work, ranks=3)) == [0] * 3


@pytest.mark.slow
def test_a_wait_that_is_over_is_not_held_against_a_rank_whose_record_no_longer_shows_the_call():
    """Rank 0 once waited long for rank 1 in a group of their own; thousands of collectives later, 1 returns first."""

    def work():
        pair = dist.new_group([0, 1])
        if dist.get_rank() == 1:
            time.sleep(1.5)
        dist.all_reduce(torch.ones(1), group=pair)
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2500)]  # the recorder keeps 2000
        while not all(work.is_completed() for work in works):  # never again in a wait of which it would speak
            time.sleep(0.01)
        if dist.get_rank() == 0:
            time.sleep(1.0)
        return dist.get_rank()

    assert list(launch(work, ranks=2)) == [0, 1]
