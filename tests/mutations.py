"""Faults planted in the library, one at a time: does `make test` find them?

    python -m tests.mutations            # plant each one, run its package's tests, print a table
    python -m tests.mutations --all 7 23 # these two, and with the slow tests too

They were chosen over all packages before anybody looked at what the tests cover. Run it in a clone: a fault is
written into the file and taken back out when its tests have ended. tests/README.md has the latest table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The tests that look for a package's faults first; what they do not find, all tests look for.
SUITES = {
    "runtime": "tests/runtime tests/launcher",
    "launcher": "tests/launcher tests/jobs",
    "core": "tests/core tests/data_parallel tests/model_parallel tests/checks/test_exercises.py",
    "messages": "tests/messages",
    "one_device": "tests/one_device tests/train",
    "data_parallel": "tests/data_parallel",
    "padding": "tests/padding",
    "model_parallel": "tests/model_parallel",
    "pipeline": "tests/pipeline",
    "sharding": "tests/sharding",
    "clusters": "tests/clusters",
    "train": "tests/train",
    "command": "tests/command",
    "checks": "tests/checks/test_check.py tests/checks/test_report.py tests/checks/test_exercises.py tests/checks",
    "lessons": "tests/checks/test_exercises.py tests/checks",
    "grading": "tests/checks",
    "classroom": "tests/classroom",
    "lab": "tests/lab",
}


@dataclass(frozen=True)
class Mutation:
    """A fault: in `file` of the library, `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str

    @property
    def tests(self) -> list[str]:
        return SUITES[self.file.split("/")[0]].split()


MUTATIONS = [
    Mutation(
        "every rank thinks it is the first on its machine",
        "launcher/rank/joining.py",
        '"LOCAL_RANK": spec.here.index(rank)',
        '"LOCAL_RANK": 0',
    ),
    Mutation(
        "the last rank to raise is blamed, not the first",
        "launcher/notebook/blame.py",
        "first = min(causes, key=lambda report: report.rank if alike else report.at)",
        "first = max(causes, key=lambda report: report.rank if alike else report.at)",
    ),
    Mutation(
        "a rank that only waits is called a deadlock",
        "launcher/hangs/deadlock.py",
        "return {wait.peer} if other.posted.get(channel, 0) < wait.number else set()",
        "return {wait.peer} if other.posted.get(channel, 0) <= wait.number else set()",
    ),
    Mutation(
        "collectives of different shapes count as the same",
        "launcher/hangs/deadlock.py",
        "same = len({_terms(call)[:3] for call in calls}) == 1",
        "same = len({_terms(call)[:1] for call in calls}) == 1",
    ),
    Mutation(
        "nothing is killed when a launch ends",
        "launcher/supervisor/supervisor.py",
        "    for member in members:\n        member.kill()\n",
        "    return\n",
    ),
    Mutation(
        "what a rank has started outlives it",
        "launcher/supervisor/supervisor.py",
        "    while orphans := children(os.getpid()):\n",
        "    while orphans := []:\n",
    ),
    Mutation(
        "torchrun's results come back in another order",
        "launcher/jobs/torchrun.py",
        'parts.append(pickling.unpack(b"".join(pieces)))',
        'parts.insert(1, pickling.unpack(b"".join(pieces)))',
    ),
    Mutation(
        "a Slurm job that saved itself is not put back into the queue",
        "launcher/jobs/slurm.py",
        "if [ $status -eq {REQUEUE} ]",
        "if [ $status -eq 0 ]",
    ),
    Mutation("paced spans do not sleep", "runtime/trace.py", "            time.sleep(remaining)", "            pass"),
    Mutation(
        "every rank takes all cores", "runtime/machine.py", "return max(1, cores() // ranks)", "return max(1, cores())"
    ),
    Mutation(
        "the meter counts a received message as sent",
        "core/metering.py",
        'bytes_by_peer = spent.sent_to if message.kind == "send" else spent.received_from',
        "bytes_by_peer = spent.sent_to",
    ),
    Mutation(
        "padding's first step counts as data",
        "core/batch.py",
        "torch.arange(self.steps, device=device)[:, None] < self.lengths.to(device)",
        "torch.arange(self.steps, device=device)[:, None] <= self.lengths.to(device)",
    ),
    Mutation(
        "every epoch has the same order",
        "core/samplers.py",
        "numpy.random.default_rng([self.seed, self.epoch])",
        "numpy.random.default_rng([self.seed])",
    ),
    Mutation(
        "buckets list the shortest sequence first",
        "padding/buckets.py",
        "numpy.argsort(-self.lengths[pool]",
        "numpy.argsort(self.lengths[pool]",
    ),
    Mutation(
        "padding adds to the squared error",
        "core/model.py",
        "outputs.squeeze(-1).where(batch.mask, batch.targets)",
        "outputs.squeeze(-1)",
    ),
    Mutation(
        "the carried state keeps its graph",
        "core/model.py",
        "return {place: (h.detach(), c.detach()) for place, (h, c) in states.items()}",
        "return states",
    ),
    Mutation(
        "DDP's gradient is divided by the ranks once more",
        "data_parallel/ddp.py",
        "self.gradient_scale = self.shares = self.ranks",
        "self.gradient_scale, self.shares = 1, self.ranks",
    ),
    Mutation(
        "replicas' all-reduces are not waited for",
        "sharding/hybrid.py",
        "        for work in self.sending:\n            work.wait()\n",
        "",
    ),
    Mutation(
        "a tensor-parallel cell loses its output's gradient",
        "model_parallel/tensor_parallel.py",
        "else gradient + from_output",
        "else gradient",
    ),
    Mutation(
        "every micro-batch sends its gradients",
        "data_parallel/ddp.py",
        "with contextlib.nullcontext() if is_last else without_sending():",
        "with contextlib.nullcontext():",
    ),
    Mutation(
        "the clipping norm of a cut model is squared",
        "core/strategy.py",
        "self.clip, squares.sqrt())",
        "self.clip, squares)",
    ),
    Mutation(
        "the gradient of the state stops between chunks",
        "pipeline/pipeline.py",
        "self.state_gradients.pop(key, {}))",
        "{})",
    ),
    Mutation(
        "a carried state is ignored",
        "core/strategy.py",
        "self.forward(batch.inputs, self.states.get(0))",
        "self.forward(batch.inputs, None)",
    ),
    Mutation(
        "1F1B keeps one micro-batch too many",
        "pipeline/named_schedules.py",
        "rows = tuple(taking_turns(*work, ahead=stages - stage) for stage in range(stages))",
        "rows = tuple(taking_turns(*work, ahead=stages - stage + 1) for stage in range(stages))",
    ),
    Mutation(
        "links cost nothing in a simulation",
        "pipeline/simulation.py",
        "times[producer][1] + costs.link",
        "times[producer][1]",
    ),
    Mutation(
        "a ring all-reduce has half its rounds",
        "messages/link.py",
        "return 2 * (ranks - 1) * self.seconds(size / ranks)",
        "return (ranks - 1) * self.seconds(size / ranks)",
    ),
    Mutation(
        "a damaged checkpoint is loaded",
        "train/checkpoint/files.py",
        "        if not damage:\n            return read_checkpoint(path), damaged",
        "        if True:\n            return read_checkpoint(path), damaged",
    ),
    Mutation(
        "the newest checkpoint is removed, not the oldest",
        "train/checkpoint/files.py",
        "if (path / FACTS).is_file()][keep:]",
        "if (path / FACTS).is_file()][:keep]",
    ),
    Mutation(
        "every epoch after the first is the first again",
        "one_device/loop.py",
        "self.epoch, self.batch = self.epoch + 1, 0",
        "self.epoch, self.batch = 0, 0",
    ),
    Mutation(
        "the proof does not compare parameters",
        "core/proof.py",
        "return max(self.gradients, self.parameters, self.loss) <= TOLERANCE",
        "return max(self.gradients, self.loss) <= TOLERANCE",
    ),
    Mutation(
        "ranks stop training at different updates",
        "one_device/loop.py",
        "        self._pending = work, flag\n        return reason",
        "        self._pending = work, flag\n        return REASONS[here]",
    ),
    Mutation(
        "an answer over its budget passes",
        "checks/judging.py",
        "if any(cost.spent > cost.budget for cost in costs):",
        "if False:",
    ),
    Mutation(
        "a worse try takes points away",
        "checks/progress_file.py",
        '"points": max(entry["points"], report.points)',
        '"points": report.points',
    ),
    Mutation(
        "exercises are handed out with their answers",
        "checks/notebooks.py",
        'cell["source"] = _stubbed(source(cell)).splitlines(keepends=True)',
        'cell["source"] = source(cell).splitlines(keepends=True)',
    ),
    Mutation("submissions reach the network", "grading/sandbox.py", '"--unshare-net", ', ""),
    Mutation(
        "Moodle's table has one lesson's marks for all",
        "grading/platforms.py",
        "for record in theirs if record.student == student",
        "for record in theirs",
    ),
    Mutation(
        "pages of other sites may act in a class",
        "classroom/server/guards.py",
        "return theirs.scheme == request.protocol and theirs.netloc.lower() == request.host.lower()",
        "return True",
    ),
    Mutation(
        "a learner who passed counts as trying again",
        "classroom/server/tally.py",
        "if learner not in trials.passed:",
        "if True:",
    ),
    Mutation(
        "what a learner does while the class is away is lost",
        "classroom/learner/outbox.py",
        'insert or ignore into events (learner, id, event) values (?, ?, ?)", row)',
        'insert or ignore into events (learner, id, event) values (?, ?, ?)", row)\n'
        '        self._file.execute("delete from events")',
    ),
    Mutation(
        "an update overwrites a learner's changed cell",
        "lab/merge.py",
        "elif changed and (is_answer(course) or (old is not None and _hash(course) == old.hash)):",
        "elif changed and is_answer(course):",
    ),
    Mutation("a slow GPU is not named", "clusters/health.py", "own > times_longer * (usual", "own > 1e9 * (usual"),
    Mutation(
        "a picture of paced times does not say so",
        "pipeline/schedule_picture.py",
        "paced = any(one.paced for one in timed)",
        "paced = False",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="which ones, counted from 1 (default: all)")
    parser.add_argument("--all", action="store_true", help="with the tests that `make test` leaves out")
    options = parser.parse_args()
    if subprocess.run(["git", "diff", "--quiet", "--", "course_lib"], cwd=ROOT).returncode:
        sys.exit("course_lib has changes that are not committed: a fault could not be taken back. Use a clean clone")
    marks = [] if options.all else ["-m", "not slow or core"]
    missed = 0
    for number, mutation in enumerate(MUTATIONS, 1):
        if not options.numbers or number in options.numbers:
            missed += not _try(number, mutation, marks)
    return min(missed, 1)


def _try(number: int, mutation: Mutation, marks: list[str]) -> bool:
    path = ROOT / "course_lib" / mutation.file
    sound = path.read_text()
    if sound.count(mutation.old) != 1:
        sys.exit(f"{number}: {mutation.old!r} is {sound.count(mutation.old)} times in {path}")
    began = time.monotonic()
    path.write_text(sound.replace(mutation.old, mutation.new))
    try:
        found = next(filter(None, (_failed(where, marks) for where in (mutation.tests, ["tests"]))), "")
    finally:
        path.write_text(sound)
    print(
        f"| {number} | {mutation.what} | `{mutation.file}` | {found or '**not found**'} |"
        f" <!-- {time.monotonic() - began:.0f} s -->",
        flush=True,
    )
    return bool(found)


def _failed(where: list[str], marks: list[str]) -> str:
    """The first test that fails, or nothing."""
    workers = ["-n", "3", "--dist", "loadscope"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", *workers, *marks, *where]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    named = [line.split(" ")[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return f"`{named[0].partition('[')[0]}`" if named else ""


if __name__ == "__main__":
    sys.exit(main())
