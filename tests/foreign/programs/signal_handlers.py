"""A program that catches signals to save its work, and an alarm that rings."""

import os
import signal

import torch
import torch.distributed as dist


class Saver:
    def __init__(self):
        self.asked = []
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self.note)

    def note(self, number, frame):
        self.asked.append(signal.Signals(number).name)


def main():
    saver = Saver()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        os.kill(os.getpid(), number)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()
    dist.all_reduce(torch.ones(1))
    return sorted(saver.asked)


def check(values):
    assert values == [["SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2"]] * len(values)
