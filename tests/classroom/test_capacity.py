"""How many learners a machine carries: what is reckoned from the measurements, and the measurements themselves."""

from __future__ import annotations

import mmap
import os

import pytest

from course_lib import cli
from course_lib.classroom.capacity import Capacity, measure, pss

MB = 1 << 20


def capacity(**given) -> Capacity:
    usual = {"memory": 10_000 * MB, "cores": 4, "at_rest": 300 * MB, "launching": 400 * MB, "check_seconds": {1: 0.1}}
    return Capacity(**{**usual, **given})


def test_a_quarter_of_the_learners_launches_and_a_tenth_of_the_memory_is_kept():
    assert capacity().by_memory == 9000 // (300 + 100)


def test_checks_are_as_many_as_patience_allows():
    assert capacity(check_seconds={1: 1.0, 4: 2.0}).by_time == 20 * 4


def test_what_runs_out_first_is_named():
    assert "22 learners, a quarter of them launching or checking at once: memory runs out first" in str(capacity())
    busy = capacity(check_seconds={1: 1.0, 4: 8.0})
    assert "20 learners, a quarter of them launching or checking at once: the cores run out first" in str(busy)
    assert "carries no learner" in str(capacity(memory=100 * MB))


def test_bad_numbers_are_a_sentence(capsys):
    assert cli.main(["class", "--capacity", "--learners", "0"]) == 2
    assert "--learners 0: give a whole number from 1 to 64" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="only Linux tells the proportional set size")
def test_a_page_that_two_processes_share_counts_once():
    shared = mmap.mmap(-1, 64 * MB)
    shared.write(b"x" * (64 * MB))
    alone, (ready, parent), (child, go) = pss(os.getpid()), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        shared.seek(0)
        shared.read()
        os.write(parent, b"x")
        os.read(child, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert alone - pss(os.getpid()) > 25 * MB
        assert pss(pid) > 25 * MB
    finally:
        os.write(go, b"x")
        os.waitpid(pid, 0)
        shared.close()


@pytest.mark.slow
def test_two_learners_are_measured_and_ended():
    found = measure(2)
    assert 50 * MB < found.at_rest < 2000 * MB
    assert found.launching > 20 * MB
    assert list(found.check_seconds) == [1, 2]
    assert found.learners > 0
