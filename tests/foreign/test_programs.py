"""Programs that were not written for this launcher run on it as they are.

Each is a file in `programs/`, after what public tutorials and examples do. It runs through `launch`, as if its
functions stood in a notebook's cells, through `course run`, and through `torchrun -m course_lib run`.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import launch

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
STARTS_PROCESSES = {"loader_workers", "own_spawn"}  # each imports torch
QUICK = {"ddp_tutorial", "leaves_by_exit"}  # for the slower ways: they differ from each other in nothing but the way
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def load(name: str) -> dict:
    """The program's names, as if they had been defined in a notebook: they travel by value."""
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def by_command(name: str, *launcher: str) -> tuple[list, str]:
    """What the ranks returned, and all that was printed."""
    arguments = load(name).get("ARGUMENTS", [])
    command = [sys.executable, *launcher, "-m", "course_lib", "run", f"{name}.py:main"]
    command += ["--timeout", "300", *(["--", *arguments] if arguments else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^(?:\[rank 0\] )?rank \d+ returned (.*)$", done.stdout, flags=re.MULTILINE)
    return [ast.literal_eval(value) for value in said], done.stdout + done.stderr


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.core if n in QUICK else ()) for n in PROGRAMS])
@pytest.mark.timeout(400)
def test_a_program_runs_from_a_notebook(name, monkeypatch):
    ranks = 2 if name in STARTS_PROCESSES else 3
    program = load(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *program.get("ARGUMENTS", [])])
    run = launch(program["main"], ranks=ranks, timeout=300)
    program["check"](list(run))
    assert program.get("SAYS", "") in "\n".join(line for _, line in run.output)


@pytest.mark.parametrize("name", sorted(QUICK))
@pytest.mark.timeout(400)
def test_a_program_runs_by_course_run(name):
    values, said = by_command(name)
    load(name)["check"](values)
    assert load(name).get("SAYS", "") in said


@pytest.mark.parametrize("name", sorted(QUICK))
@pytest.mark.timeout(400)
def test_a_program_runs_by_torchrun(name):
    values, said = by_command(name, *TORCHRUN)
    load(name)["check"](values)
    assert load(name).get("SAYS", "") in said


CANNOT = {
    "input": ("input('learning rate? ')", "a rank has no keyboard: ask before the launch"),
    "other number of ranks": ("dist.init_process_group('gloo', rank=0, world_size=8)", "this launch has 2 ranks"),
    "init twice": ("dist.init_process_group('gloo') or dist.init_process_group('gloo')", "twice"),
    "launch on a rank": ("launch(print, ranks=2)", "a rank cannot launch ranks"),
    "exit with an error": ("sys.exit(3)", "SystemExit: 3"),
}


@pytest.mark.parametrize(("body", "says"), CANNOT.values(), ids=CANNOT)
def test_what_cannot_work_is_told_in_a_sentence(body, says):
    names: dict = {"__name__": "__main__"}
    exec(f"import sys, torch.distributed as dist\nfrom course_lib import launch\ndef main():\n    {body}", names)
    with pytest.raises(RuntimeError, match=says):
        launch(names["main"], ranks=2)
