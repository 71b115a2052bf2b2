"""The `course` command; `python -m course_lib` is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from course_lib.launchers import LaunchError, PeersLost, Slurm
from course_lib.launchers.local import MOST_RANKS
from course_lib.launchers.slurm import BadPlace

TRAIN_OPTIONS = (
    *("strategy", "data", "updates", "batch", "tokens", "hidden", "layers", "learning_rate", "seed"),
    *("checkpoint", "every", "resume", "log"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes no positional arguments behind an option: `course run f.py:g --ranks 2 steps=10`
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(options, "arguments")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments += rest
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="Train an LSTM on many GPUs: the course's commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what this machine has, and what will therefore work")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser("lab", help="open the course in JupyterLab")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=int, default=8888, help="first port to try (default: 8888)")
    lab.set_defaults(run=_lab)

    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        description="Run a function from a file on several ranks. Under torchrun, be one of its ranks.",
    )
    run.add_argument("target", metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="arguments for the function")
    run.add_argument("--ranks", type=_ranks, help="how many (default: 2; under torchrun, it decides)")
    run.add_argument("--timeout", type=_seconds, default=60.0, help="seconds; 0 waits for ever (default: 60)")
    run.add_argument("--timeline", metavar="PICTURE.png", help="draw the recorded spans into a file")
    _add_cluster(run)
    run.set_defaults(run=_run)

    _add_train(commands)
    plot = commands.add_parser("plot", help="draw the loss of training runs from their logs")
    plot.add_argument("logs", nargs="+", metavar="LOG", help="what `course train --log LOG` wrote")
    plot.add_argument("--out", required=True, metavar="PICTURE.png", help="where to draw it")
    plot.set_defaults(run=_plot)
    _add_grade(commands)
    return parser


def _add_grade(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser("check", help="check the answers in a notebook of exercises")
    check.add_argument("notebook", metavar="NOTEBOOK.ipynb")
    check.set_defaults(run=_check)

    done = commands.add_parser("progress", help="what you have earned in the exercises")
    done.set_defaults(run=_progress)

    grade = commands.add_parser(
        "grade",
        help="grade the exercises that a class has handed in",
        description="Grade the exercises that a class has handed in: a page for each student, a table for the class. "
        "Interrupted, it goes on where it stopped.",
    )
    grade.add_argument("submissions", metavar="SUBMISSIONS", help="a folder that has one for each student")
    grade.add_argument("--out", required=True, metavar="GRADES", help="a folder for pages, table and records")
    grade.add_argument("--jobs", type=int, help="how many notebooks at a time (default: one for each core)")
    grade.add_argument("--seed", type=int, help="of the inputs, for a set of your own")
    grade.add_argument("--again", action="store_true", help="grade everything anew")
    grade.add_argument("--gradebook", metavar="DATABASE", help="nbgrader's, for example sqlite:///gradebook.db")
    grade.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run submissions with your own rights: they can read, change and send whatever you can",
    )
    grade.set_defaults(run=_grade)


def _add_train(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser(
        "train",
        help="train an LSTM, with any of the course's strategies",
        description="Train an LSTM on several ranks. Under torchrun, be one of its ranks.",
    )
    train.add_argument(
        "strategy",
        metavar="STRATEGY",
        help="single, ddp, accumulation, model, tensor, pipeline, hybrid, or module:Class for your own",
    )
    train.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="options of the strategy")
    train.add_argument("--ranks", type=_ranks, help="how many (default: 2, single: 1; under torchrun, it decides)")
    train.add_argument("--data", default="adding", metavar="adding|text|FILE", help="default: the adding problem")
    for name, default, what in (
        ("updates", 300, "how many"),
        ("batch", 64, "sequences of the adding problem in an update, of all ranks together"),
        ("tokens", 4096, "tokens of a text in an update, of all ranks together"),
        ("hidden", 64, "numbers in an LSTM layer's state"),
        ("layers", 2, "LSTM layers"),
        ("seed", 0, "of the weights and of the order of the data"),
    ):
        train.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    train.add_argument("--learning-rate", type=float, default=0.01, help="default: 0.01")
    train.add_argument("--checkpoint", metavar="FOLDER", help="save checkpoints there; the last two are kept")
    train.add_argument("--every", type=int, default=50, help="updates between checkpoints (default: 50)")
    train.add_argument("--resume", action="store_true", help="go on from the folder's last checkpoint")
    # torchrun reads its script's options, too, and takes --log for one of its own, cut short.
    log = "write a line of JSON per update, for `course plot`; behind torchrun, write --log-file"
    train.add_argument("--log", "--log-file", metavar="FILE", help=log)
    _add_cluster(train)
    train.set_defaults(run=_train)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    patience = "seconds a rank waits for the others before it gives up (default: PyTorch's, 10 to 30 minutes)"
    command.add_argument("--peer-timeout", type=_seconds, metavar="SECONDS", help=f"on several machines, {patience}")
    options = command.add_argument_group("on a Slurm cluster", "wait in its queue, run on its nodes, show it here")
    options.add_argument("--slurm", action="store_true", help="submit it as a job; --ranks follows from what is below")
    options.add_argument("--nodes", type=int, default=2, help="how many (default: 2)")
    options.add_argument("--gpus-per-node", type=int, default=8, metavar="GPUS", help="default: 8; 0 for none")
    options.add_argument("--ranks-per-node", type=int, metavar="RANKS", help="default: one for each GPU")
    options.add_argument("--time", default="1:00:00", help="the job ends after that; default: 1:00:00, an hour")
    options.add_argument("--partition", help="default: the cluster's")
    options.add_argument("--account", help="default: yours")
    options.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="one more option of sbatch")


def _cluster(options: argparse.Namespace) -> Slurm | None:
    """Where to run, if it is not this machine."""
    if not options.slurm:
        return None
    names = ("nodes", "gpus_per_node", "ranks_per_node", "time", "partition", "account", "peer_timeout")
    place = Slurm(**{name: getattr(options, name) for name in names}, options=options.sbatch)
    if options.ranks:
        place.check(options.ranks)
    return place


def _doctor(_: argparse.Namespace) -> int:
    from course_lib.doctor import examine

    report = examine()
    print(report)
    return 0 if report.course_can_run else 1


def _lab(options: argparse.Namespace) -> int:
    from course_lib.lab import LabMissing, open_lab

    try:
        return open_lab(port=options.port, browser=not options.no_browser)
    except LabMissing as error:
        return _complain(error)


def _run(options: argparse.Namespace) -> int:
    from course_lib.launchers import torchrun

    try:
        if torchrun.started_by_torchrun():
            run = torchrun.run_rank(
                options.target,
                options.arguments,
                peer_timeout=options.peer_timeout,
                record=options.timeline is not None,
            )
        else:
            place, timeout = _cluster(options), options.timeout or None
            ranks = place.ranks if place else options.ranks or 2
            run = torchrun.run_job(options.target, options.arguments, ranks=ranks, timeout=timeout, on=place)
    except (BadPlace, torchrun.BadJob, LaunchError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("course: interrupted; all ranks have been stopped", file=sys.stderr)
        return 130
    if run is not None:
        for rank, value in enumerate(run):
            print(f"rank {rank} returned {value!r}")
        print(f"{len(run)} {'rank' if len(run) == 1 else 'ranks'}, {run.seconds:.2f} s")
        if options.timeline:
            from course_lib import pictures

            pictures.timeline(run).save(options.timeline)
    return 0


def _train(options: argparse.Namespace) -> int:
    from course_lib.launchers import torchrun, warm_up

    under_torchrun, speaks = torchrun.started_by_torchrun(), True
    if under_torchrun:
        speaks = torchrun.speak_as_rank() == 0  # the others would say the same
    elif not options.slurm:
        warm_up()  # it imports torch while this process does
    from course_lib.training.job import launch_job, resume_hint, run_job_as_rank
    from course_lib.training.settings import BadSettings, Settings

    settings = Settings(**{name: getattr(options, name) for name in TRAIN_OPTIONS})
    try:
        settings = replace(settings, options=torchrun.parse(options.arguments))
        place, peer_timeout = _cluster(options), options.peer_timeout
        ranks = place.ranks if place else options.ranks or (1 if settings.strategy == "single" else 2)
        run = run_job_as_rank(settings, peer_timeout) if under_torchrun else launch_job(settings, ranks, on=place)
    except (BadPlace, torchrun.BadJob, BadSettings) as error:
        return _complain(error, status=2) if speaks else 2
    except PeersLost as error:
        status = _complain(error)
        print(f"course: the job has ended{resume_hint(settings)}", file=sys.stderr)
        return status
    except LaunchError as error:
        return _complain(error)
    except KeyboardInterrupt:
        if speaks:
            print(f"course: interrupted; all ranks have been stopped{resume_hint(settings)}", file=sys.stderr)
        return 130
    if run is not None:
        print("{updates} updates, loss {loss:.4f}, {tokens per second:,.0f} tokens/s".format(**run[0]))
    return 0


def _plot(options: argparse.Namespace) -> int:
    from course_lib.pictures import losses
    from course_lib.training.log import LogError

    try:
        losses(*options.logs).save(options.out)
    except (LogError, OSError, ValueError) as error:
        return _complain(error, status=2)
    return 0


def _check(options: argparse.Namespace) -> int:
    from course_lib.launchers import warm_up

    warm_up()
    from course_lib.checks import check_notebook
    from course_lib.checks.notebooks import BadNotebook

    try:
        return 0 if check_notebook(options.notebook) else 1
    except BadNotebook as error:
        return _complain(error, status=2)


def _progress(_: argparse.Namespace) -> int:
    from course_lib.checks import exercises, progress

    print(progress.table(exercises()))
    return 0


def _grade(options: argparse.Namespace) -> int:
    from course_lib.grading.gradebook import NoGradebook
    from course_lib.grading.grader import grade
    from course_lib.grading.sandbox import NoSandbox
    from course_lib.grading.submissions import BadSubmissions

    try:
        print(grade(**{name: value for name, value in vars(options).items() if name != "run"}))
    except (BadSubmissions, NoSandbox, NoGradebook, OSError) as error:
        return _complain(error, status=2)
    except KeyboardInterrupt:
        print("course: interrupted; run the same command again to go on from here", file=sys.stderr)
        return 130
    return 0


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text}: give a number of ranks from 1 to {MOST_RANKS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text}: give a number of seconds, or 0 to wait for ever")
    return seconds


def _complain(error: Exception, status: int = 1) -> int:
    name = f"{type(error).__name__}: " if isinstance(error, LaunchError) else ""
    print(f"course: {name}{error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
