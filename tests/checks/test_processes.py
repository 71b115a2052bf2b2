"""A process that looks like another one, as ranks of a real job do to each other."""

from __future__ import annotations

import builtins
import os
import socket
import threading
import time
from time import time as now

import pytest

from course_lib.lessons.processes import as_process


def by_the_clock():
    return now() // 600


SALTED = [
    lambda: hash("a text"),
    lambda: hash((1, "a text")),
    lambda: sorted("abcdefghijklmnop", key=hash),
    os.getppid,
    os.getpid,
    lambda: time.time() // 600,
    lambda: time.time_ns() // 600_000_000_000,
    by_the_clock,
    socket.gethostname,
]
SAME = [lambda: hash((1, 2)), lambda: hash(2.5), lambda: hash(""), lambda: len(os.environ)]


def seen_by(number, function):
    # A function of a module is looked up when it is called, as an answer does it.
    ask = getattr(builtins, function.__name__, None) or globals().get(function.__name__) or function
    with as_process(number, by_the_clock):
        return getattr(os, function.__name__, getattr(socket, function.__name__, ask))()


@pytest.mark.parametrize("function", SALTED)
def test_what_differs_between_processes_differs_here(function):
    assert seen_by(1, function) == seen_by(1, function) != seen_by(0, function)


@pytest.mark.parametrize("function", SAME)
def test_what_is_the_same_in_all_processes_is_the_same_here(function):
    assert seen_by(1, function) == seen_by(0, function)


def test_other_threads_and_what_comes_later_see_nothing_of_it():
    before, found = (hash, os.getpid, time.time, now), []
    with as_process(3, by_the_clock):
        thread = threading.Thread(target=lambda: found.append((os.getpid(), hash("text"))))
        thread.start()
        thread.join()
    assert (hash, os.getpid, time.time, now) == before
    assert found == [(os.getpid(), hash("text"))]
