"""The first live cell starts as soon as the server has imported torch; what only training needs follows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.launchers.process import folders, preload
from tests.conftest import PATIENCE

MODULES = ["json.tool", "there_is_no_such_module", "colorsys"]


def test_everything_is_imported_unless_somebody_is_in_a_hurry(tmp_path):
    assert preload.load([], MODULES, tmp_path / "hurry") == []
    (tmp_path / "hurry").touch()
    assert preload.load(["calendar"], MODULES, tmp_path / "hurry") == MODULES


def test_the_hurry_ends_with_the_block_that_starts_the_ranks():
    file = folders._hurry_file()
    with folders.hurried():
        assert file.exists()
    assert not file.exists()


PROGRAM = """
import json, sys, time
from course_lib import launch, ranks

HAS = "import sys; 'torch._dynamo' in sys.modules"
found = {}
with ranks(1) as team:
    found["first team"] = team.run(HAS)[0]
    found["alarm"] = team.run("import signal; signal.getsignal(signal.SIGALRM) is signal.SIG_DFL")[0]
    found["timer"] = team.run("signal.getitimer(signal.ITIMER_REAL)")[0]
until = time.monotonic() + float(sys.argv[1])
while not found.get("later") and time.monotonic() < until:
    found["later"] = launch(lambda: "torch._dynamo" in sys.modules, ranks=1)[0]
with ranks(1) as team:
    found["next team"] = team.run(HAS)[0]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_first_team_does_not_wait_for_what_only_training_needs_and_later_ranks_have_it(tmp_path):
    program = Path(tmp_path, "program.py")
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(PATIENCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {"first team": False, "alarm": True, "timer": [0.0, 0.0], "later": True, "next team": True}
    assert found == expected
