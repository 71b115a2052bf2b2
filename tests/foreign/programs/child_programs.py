"""Other programs, started from a rank: their output is caught, their exit is seen."""

import subprocess
import sys


def main():
    subprocess.run([sys.executable, "-c", "print('a child speaks')"], check=True)
    found = subprocess.run(["sh", "-c", "read line; echo got:$line"], capture_output=True, text=True)
    print("last words", end="")
    failed = subprocess.run([sys.executable, "-c", "raise SystemExit(7)"])
    return found.stdout.strip(), failed.returncode


SAYS = "last words"


def check(values):
    assert set(values) == {("got:", 7)}
