"""The `course` command; `python -m course_lib` is the same."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from course_lib import cli_arguments as take
from course_lib import interrupt
from course_lib.cli_arguments import BadUsage, Parser
from course_lib.launchers import LaunchError, PeersLost, Run, Slurm, torchrun, warm_up
from course_lib.launchers.local import MOST_RANKS
from course_lib.launchers.process import stop
from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.slurm import BadPlace
from course_lib.launchers.target import BadJob, parse
from course_lib.launchers.torchrun import leaving_at_once
from course_lib.launchers.tracing.trace_file import TraceError, check_can_be_written, read_trace

TRAIN_OPTIONS = (
    *("strategy", "data", "updates", "batch", "tokens", "hidden", "layers", "learning_rate", "seed"),
    *("checkpoint", "every", "resume", "time_limit", "log"),
)


SLURM_OPTIONS = ("nodes", "gpus_per_node", "ranks_per_node", "time", "partition", "account", "sbatch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status.

    0, 1 for a failure, 2 for bad arguments, 75 for a job that was stopped and can go on, 130 for an interrupt.
    """
    interrupt.take_over()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be of any bytes, and is printed
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except BadUsage as error:
        return _complain(error, status=2)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # `course progress | head -1`; what is left to flush goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename is not None else error)
    except MemoryError:
        return _complain("there is not enough memory for that; give smaller numbers, or use a larger machine")


def _main(words: list[str]) -> int:
    try:
        os.getcwd()
    except FileNotFoundError:
        return _complain("the folder that you are in has been removed; go to another one with cd")
    ours, behind = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, None)
    parser = make_parser()
    if behind is not None and ours[:1] != ["run"]:
        parser.error("only `course run` takes words behind --, for the function that it runs")
    for word in ours:
        if word.startswith("--") and word.endswith("=--"):  # argparse would take it for an empty list
            parser.error(f"{word}: give a value")
    with leaving_at_once():  # some arguments are looked up in matplotlib, which takes a while to import
        options, rest = parser.parse_known_args(ours)
    # argparse takes no positional arguments behind an option: `course run f.py:g --ranks 2 steps=10`
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(options, "arguments")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments = [*options.arguments, *rest]
    options.argv = behind or []
    return options.run(options)


def make_parser() -> Parser:
    """All commands and their options."""
    parser = Parser(prog="course", description="Train an LSTM on many GPUs: the course's commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what this machine has, and what will therefore work")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser(
        "lab",
        help="open the course in JupyterLab",
        description="Open the course in JupyterLab, on a desk: a folder of your own, with lessons and exercises. It "
        "is made if there is none. What you write there is never overwritten.",
    )
    _add_desk(lab)
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=take.port, default=8888, help="first port to try (default: 8888)")
    lab.set_defaults(run=_lab)

    update = commands.add_parser(
        "update",
        help="bring a newer course onto your desk",
        description="After a newer version was installed or pulled: renew the lessons and exercises on your desk. Your "
        "answers and cells stay in them; what cannot be put together is kept in a file beside.",
    )
    _add_desk(update)
    update.set_defaults(run=_update)

    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        usage="course run [OPTIONS] FILE.py:FUNCTION [NAME=VALUE ...] [-- WORD ...]",
        description="Run a function from a file on several ranks. Under torchrun, be one of its ranks. "
        "What stands behind -- is sys.argv[1:] there, for a function that reads options of its own: "
        "course run train.py:main --ranks 4 -- --lr 3",
    )
    run.add_argument("target", type=take.words, metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="arguments for the function")
    run.add_argument("--ranks", type=take.ranks, help="how many (default: 2; under torchrun, it decides)")
    run.add_argument("--timeout", type=take.seconds, default=60.0, help="seconds; 0 waits for ever (default: 60)")
    run.add_argument("--timeline", type=take.picture, metavar="PICTURE.png", help="draw the recorded spans into a file")
    _add_cluster(run)
    run.set_defaults(run=_run)

    _add_train(commands)
    plot = commands.add_parser("plot", help="draw the loss of training runs from their logs")
    plot.add_argument("logs", nargs="+", type=take.words, metavar="LOG", help="what `course train --log LOG` wrote")
    plot.add_argument("--out", type=take.picture, required=True, metavar="PICTURE.png", help="where to draw it")
    plot.set_defaults(run=_plot)
    stragglers = commands.add_parser("stragglers", help="which rank the others wait for, from a trace of a run")
    stragglers.add_argument("trace", type=take.words, metavar="TRACE", help="what `course train --profile` wrote")
    stragglers.set_defaults(run=_stragglers)
    _add_grade(commands)
    return parser


def _add_desk(command: argparse.ArgumentParser) -> None:
    help_ = "the folder that you work in (default: work, in the course's folder or where you are)"
    command.add_argument("--desk", type=take.words, metavar="FOLDER", help=help_)


def _add_grade(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser("check", help="check the answers in a notebook of exercises")
    check.add_argument("notebook", type=take.words, metavar="NOTEBOOK.ipynb")
    check.set_defaults(run=_check)

    done = commands.add_parser("progress", help="how far you are: predictions, exercises, and what comes next")
    done.set_defaults(run=_progress)

    grade = commands.add_parser(
        "grade",
        help="grade the exercises that a class has handed in",
        description="Grade the exercises that a class has handed in: a page for each student, a page and a table "
        "for the class. Interrupted, it goes on where it stopped.",
    )
    grade.add_argument(
        "submissions", type=take.words, nargs="?", metavar="SUBMISSIONS", help="a folder that has one for each student"
    )
    grade.add_argument(
        "--out", type=take.words, metavar="GRADES", help="a folder for index.html, pages, table and records"
    )
    grade.add_argument("--explain", action="store_true", help="say what keeps submissions in their place here, and end")
    grade.add_argument("--jobs", type=take.count, help="how many notebooks at a time (default: one for each core)")
    grade.add_argument("--seed", type=take.seed, help="of the inputs, for a set of your own")
    grade.add_argument("--again", action="store_true", help="grade everything anew")
    grade.add_argument(
        "--gradebook", type=take.words, metavar="DATABASE", help="nbgrader's, for example sqlite:///gradebook.db"
    )
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
        description="Train an LSTM on several ranks. Under torchrun, be one of its ranks. With --checkpoint, SIGTERM, "
        f"SIGUSR1 and --time-limit save one and end the run with exit status {REQUEUE}: start it again with --resume.",
    )
    train.add_argument(
        "strategy",
        type=take.words,
        metavar="STRATEGY",
        help="single, ddp, accumulation, model, tensor, pipeline, hybrid, fsdp, or module:Class for your own",
    )
    train.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="options of the strategy")
    train.add_argument("--ranks", type=take.ranks, help="how many (default: 2, single: 1; under torchrun, it decides)")
    train.add_argument(
        "--data",
        type=take.words,
        default="adding",
        metavar="adding|text|FILE",
        help="default: the adding problem; "
        "the tokens of a text FILE are made once and kept beside it, in FILE.tokens-..., or in ~/.cache/course",
    )
    for name, kind, default, what in (
        ("updates", take.count, 300, "how many"),
        ("batch", take.count, 64, "sequences of the adding problem in an update, of all ranks together"),
        ("tokens", take.count, 4096, "tokens of a text in an update, of all ranks together"),
        ("hidden", take.count, 64, "numbers in an LSTM layer's state"),
        ("layers", take.count, 2, "LSTM layers"),
        ("seed", take.seed, 0, "of the weights and of the order of the data"),
        ("every", take.count, 50, "updates between checkpoints"),
        ("learning-rate", take.learning_rate, 0.01, "of Adam"),
    ):
        train.add_argument(f"--{name}", type=kind, default=default, help=f"{what} (default: {default})")
    folder = "save checkpoints there; the last two are kept"
    train.add_argument("--checkpoint", type=take.words, metavar="FOLDER", help=folder)
    train.add_argument("--resume", action="store_true", help="go on from the folder's last checkpoint")
    limit = "save a checkpoint after that time, and stop, to be resumed"
    train.add_argument("--time-limit", type=take.time_limit, metavar="SECONDS|H:MM:SS", help=limit)
    # torchrun reads its script's options, too, and takes --log for one of its own, cut short.
    log = "write a line of JSON per update, for `course plot`; behind torchrun, write --log-file"
    train.add_argument("--log", "--log-file", type=take.words, metavar="FILE", help=log)
    profile = "write a trace of all ranks with some updates under PyTorch's profiler, for ui.perfetto.dev"
    train.add_argument("--profile", type=take.words, metavar="FILE", help=profile)
    _add_cluster(train)
    train.set_defaults(run=_train)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    help_ = "on several machines, seconds a rank waits for the others before it gives up; 0 waits for ever"
    default = "default: PyTorch's, 10 to 30 minutes"
    command.add_argument("--peer-timeout", type=take.patience, metavar="SECONDS", help=f"{help_} ({default})")
    options = command.add_argument_group("on a Slurm cluster", "wait in its queue, run on its nodes, show it here")
    options.add_argument("--slurm", action="store_true", help="submit it as a job; --ranks follows from what is below")
    for name, kind, metavar, what in (
        ("nodes", take.count, "NODES", "how many (default: 2)"),
        ("gpus-per-node", take.whole_number(0, 1000), "GPUS", "default: 8; 0 for none"),
        ("ranks-per-node", take.count, "RANKS", "default: one for each GPU"),
        ("time", take.slurm_time, "TIME", "the job ends after that; default: 1:00:00, an hour"),
        ("partition", take.sbatch_word, "PARTITION", "default: the cluster's"),
        ("account", take.sbatch_word, "ACCOUNT", "default: yours"),
    ):
        options.add_argument(f"--{name}", type=kind, metavar=metavar, help=what)
    options.add_argument(
        "--sbatch", type=take.sbatch_word, action="append", metavar="OPTION", help="one more option of sbatch"
    )


def _place(options: argparse.Namespace) -> Slurm | None:
    """Where to run, if it is not this machine."""
    given = {name: value for name in SLURM_OPTIONS if (value := getattr(options, name)) is not None}
    if options.slurm:
        extra = given.pop("sbatch", [])
        place = Slurm(**given, options=extra, peer_timeout=options.peer_timeout)
        if options.ranks:
            place.check(options.ranks)
        return place
    if given:
        raise BadUsage(f"--{next(iter(given)).replace('_', '-')} is for a Slurm cluster; add --slurm, or leave it out")
    if (options.ranks or 0) > MOST_RANKS:
        raise BadUsage(f"--ranks {options.ranks}: give a number of ranks from 1 to {MOST_RANKS}; a cluster has room")
    return None


def _doctor(_: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.doctor import examine

    report = examine()
    print(report)
    return 0 if report.course_can_run else 1


def _lab(options: argparse.Namespace) -> int:
    from course_lib.lab import BadDesk, LabMissing, open_lab

    try:
        return open_lab(port=options.port, browser=not options.no_browser, desk=options.desk)
    except BadDesk as error:
        return _complain(error, status=2)
    except LabMissing as error:
        return _complain(error)


def _update(options: argparse.Namespace) -> int:
    from course_lib.lab import BadDesk, update_desk

    try:
        print(update_desk(options.desk))
    except BadDesk as error:
        return _complain(error, status=2)
    return 0


def _run(options: argparse.Namespace) -> int:
    try:
        if torchrun.started_by_torchrun():
            run = torchrun.run_rank(
                options.target,
                options.arguments,
                peer_timeout=options.peer_timeout,
                record=options.timeline is not None,
                argv=options.argv,
            )
        else:
            place, timeout = _place(options), options.timeout or None
            ranks = place.ranks if place else options.ranks or 2
            run = torchrun.run_job(
                options.target, options.arguments, ranks=ranks, timeout=timeout, on=place, argv=options.argv
            )
    except (BadPlace, BadJob) as error:
        return _complain(error, status=2)
    except LaunchError as error:
        return _complain(error)
    except KeyboardInterrupt:
        return _interrupted("; all ranks have been stopped")
    if run is not None:
        for rank, value in enumerate(run):
            print(f"rank {rank} returned {value!r}")
        print(f"{len(run)} {'rank' if len(run) == 1 else 'ranks'}, {run.seconds:.2f} s")
        if options.timeline:
            from course_lib import pictures

            pictures.timeline(run).save(options.timeline)
    return 0


def _train(options: argparse.Namespace) -> int:
    under_torchrun, speaks = torchrun.started_by_torchrun(), True
    if under_torchrun:
        speaks = torchrun.speak_as_rank() == 0  # the others would say the same
    elif not options.slurm:
        warm_up()  # it imports torch while this process does
    with leaving_at_once():
        from course_lib.training.job import launch_job, resume_hint, run_job_as_rank
        from course_lib.training.metrics import NotFinite
        from course_lib.training.settings import BadSettings, Settings

    settings = Settings(**{name: getattr(options, name) for name in TRAIN_OPTIONS})
    try:
        settings = replace(settings, options=parse(options.arguments), profile=options.profile is not None)
        if options.profile is not None:
            check_can_be_written(options.profile)
        place, peer_timeout = _place(options), options.peer_timeout
        ranks = place.ranks if place else options.ranks or (1 if settings.strategy == "single" else 2)
        run = run_job_as_rank(settings, peer_timeout) if under_torchrun else launch_job(settings, ranks, on=place)
    except (BadPlace, BadJob, BadSettings, TraceError) as error:
        return _complain(error, status=2) if speaks else 2
    except NotFinite as error:
        return _complain(f"{error}{resume_hint(settings)}") if speaks else 1
    except PeersLost as error:
        status = _complain(error)
        print(f"course: the job has ended{resume_hint(settings)}", file=sys.stderr)
        return status
    except LaunchError as error:
        return _complain(error)
    except KeyboardInterrupt:
        return _interrupted(f"; all ranks have been stopped{resume_hint(settings)}") if speaks else 130
    if run is not None:
        print("{updates} updates, loss {loss:.4f}, {tokens per second:,.0f} tokens/s".format(**run[0]))
        if options.profile is not None and (status := _write_trace(run, options.profile)):
            return status
        if "stopped" in run[0]:
            print(f"course: stopped by {run[0]['stopped']}{resume_hint(settings)}", file=sys.stderr)
            return REQUEUE
    return REQUEUE if stop.request.obeyed else 0


def _write_trace(run: Run, path: str) -> int:
    try:
        print(f"the trace is in {run.trace(path)}: open it at ui.perfetto.dev, or see `course stragglers {path}`")
    except TraceError as error:
        return _complain(error)
    return 0


def _stragglers(options: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.launchers.tracing.stragglers import collectives_in, find_stragglers

    try:
        print(find_stragglers(*collectives_in(read_trace(options.trace))))
    except TraceError as error:
        return _complain(error, status=2)
    return 0


def _plot(options: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.pictures import losses
        from course_lib.training.log import LogError

    try:
        losses(*options.logs).save(options.out)
    except LogError as error:
        return _complain(error, status=2)
    return 0


def _check(options: argparse.Namespace) -> int:
    warm_up()
    with leaving_at_once():
        from course_lib.checks import check_notebook
        from course_lib.checks.notebooks import BadNotebook

    try:
        return 0 if check_notebook(options.notebook) else 1
    except BadNotebook as error:
        return _complain(error, status=2)


def _progress(_: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.checks import exercises, progress

        exercises()  # imports them
    progress()
    return 0


def _grade(options: argparse.Namespace) -> int:
    from course_lib.grading.interrupts import ended_by_an_interrupt

    with ended_by_an_interrupt("what was graded is kept: run the same command again to go on from here"):
        from course_lib.grading.gradebook import NoGradebook
        from course_lib.grading.grader import grade
        from course_lib.grading.sandbox import NoSandbox
        from course_lib.grading.submissions import BadSubmissions

        if options.explain:
            from course_lib.grading.protection import explain

            print(explain())
            return 0
        if options.submissions is None or options.out is None:
            raise BadUsage("grade: give SUBMISSIONS, a folder, and --out GRADES, another one")
        given = {name: value for name, value in vars(options).items() if name not in ("run", "argv", "explain")}
        try:
            print(grade(**given))
        except (BadSubmissions, NoSandbox, NoGradebook) as error:
            return _complain(error, status=2)
    return 0


def _complain(error: Exception | str, status: int = 1) -> int:
    """Say what is wrong: in one line, but for what somebody's own function or file has raised."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, LaunchError) else take.one_line(str(error))
    print(f"course: {told}", file=sys.stderr)
    return status


def _interrupted(more: str = "") -> int:
    print(f"course: interrupted{more}", file=sys.stderr)
    return 130


if __name__ == "__main__":
    sys.exit(main())
