"""Run a notebook from top to bottom and store what its cells print and draw; make an exercise from a solution.

A lesson's text talks about the times that its cells measure, and these are only meaningful if nothing else used the
machine. Therefore `refresh` measures how busy the machine is before and after each run, and leaves the file alone if
the machine was too busy.

Widgets and progress bars are not stored: without a running kernel, a stored widget shows only an error message.
"""

from __future__ import annotations

import json
import os
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.checks.notebooks import BEGIN, END, without_answers
from course_lib.launcher.notebook.launch import launch
from course_lib.runtime import trace
from course_lib.runtime.course_files import PACKAGE, BadNotebook, is_answer, read, source, write_whole
from course_lib.runtime.machine import cores

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_TIMEOUT = 300  # seconds
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

SPANS, SECONDS = 20, 0.02
WORK = 0.75  # the fraction of each span that a rank spends computing: on a shared core, the span takes longer
MAX_LATENESS = 1.10  # sleeping and waking up also take a little time


class NotStored(RuntimeError):
    """A notebook was not stored. The message says why."""


def refresh(path: Path, *, anyway: bool = False) -> None:
    """Run a notebook in a new kernel and store its outputs.

    Raises `NotStored`, and leaves the file unchanged, if a cell fails or if the machine is busy before or after the
    run. With `anyway`, outputs from a busy machine are stored as well.
    """
    if not anyway:
        require_idle_machine("before")
    notebook = executed(path)
    if not anyway:
        require_idle_machine("after")
    store(notebook, path)


def require_idle_machine(when: str) -> None:
    """Raise `NotStored` if the machine is too busy to measure anything; `when` is "before" or "after" the run."""
    late = lateness()
    if late > MAX_LATENESS:
        raise NotStored(
            f"the notebook was not stored, because {when} its run a timed test took {late:.2f} times as long as it "
            f"should (at most {MAX_LATENESS:.2f} is accepted). Wait until the machine is idle, or use --anyway."
        )


def lateness() -> float:
    """Run paced work on one rank per core, and return the slowest rank's time divided by the planned time.

    The result is close to 1.0 on an idle machine, and 2 or more on two cores that four other processes keep busy.
    """
    return max(launch(paced_work, ranks=cores()))


def paced_work() -> float:
    """Run spans that compute for a while and then sleep, and return their total time divided by the planned time."""
    for _ in range(SPANS):
        with trace.span("work", at_least=SECONDS):
            started_at = time.thread_time()
            while time.thread_time() - started_at < WORK * SECONDS:
                pass
    return sum(span.seconds for span in trace.recorder.spans) / (SPANS * SECONDS)


def executed(path: Path) -> NotebookNode:
    """Return the notebook with the outputs of a new run; the file itself is not changed.

    The kernel starts with live displays turned off and an empty progress file, so the outputs are those of a learner
    who has just begun. Raises `NotStored` if a cell fails or takes too long.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = {"COURSE_LIB_PROGRESS": str(Path(folder, "progress.json")), "COURSE_LIB_LIVE": "0"}
        try:
            client.execute(env=os.environ | settings)
        except (CellControlSignal, DeadKernelError) as error:
            raise NotStored(f"the notebook was not stored, because it did not run to its end. {error}") from error
    return notebook


def store(notebook: NotebookNode, path: Path) -> None:
    """Write an executed notebook to its file, without the outputs and paths that are only valid on this machine."""
    import nbformat

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if shows_something(output)]
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [without_machine_paths(line) for line in output.traceback]
    notebook.metadata = nbformat.from_dict(METADATA)
    write_whole(path, nbformat.writes(notebook).rstrip("\n") + "\n")


def shows_something(output: dict) -> bool:
    """Return whether an output is worth storing: widgets, cleared displays and the profiler's log messages are not."""
    if output.get("name") == "stderr":
        return any(line and not line.startswith("USDT:") for line in output["text"].splitlines())
    data = output.get("data")
    return data is None or (WIDGET not in data and any(data.values()))


def without_machine_paths(text: str) -> str:
    """Return a traceback in which files are named relative to the folder where their package is installed."""
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(PACKAGE.parent)):
        text = text.replace(f"{folder}/", "")
    return text


def make_exercise(solution: Path) -> Path:
    """Run a solution, write the exercise without the answers, run that as well, and return the path of the exercise.

    The exercise has the same name as the solution and goes into the folder `exercises` next to the solution's folder.
    Raises `BadNotebook` if the notebook contains no answers to remove, and `NotStored` if one of its cells fails.
    """
    if not any(BEGIN in source(cell) for cell in read(solution)["cells"] if is_answer(cell)):
        raise BadNotebook(f"it is not a solution: none of its answer cells contains {BEGIN} and {END}")
    refresh(solution, anyway=True)
    exercise = solution.resolve().parent.parent / "exercises" / solution.name
    exercise.parent.mkdir(exist_ok=True)
    text = json.dumps(without_answers(read(solution)), indent=1, ensure_ascii=False)
    exercise.write_text(text + "\n", encoding="utf-8")
    refresh(exercise, anyway=True)
    return exercise
