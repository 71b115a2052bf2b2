"""`course run` and `train`, here or on a Slurm cluster; `course plot` and `stragglers` read their logs and traces."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from course_lib.command import arguments as types
from course_lib.command.arguments import BadUsage, complain, option, status_of
from course_lib.drawing.timeline import draw_timeline
from course_lib.launcher.hangs.errors import Detached, LaunchError, PeersLost
from course_lib.launcher.jobs import torchrun
from course_lib.launcher.jobs.slurm import Slurm
from course_lib.launcher.jobs.target import parse
from course_lib.launcher.notebook.launch import MAX_RANKS, warm_up
from course_lib.launcher.tracing.trace_file import arrivals_in, check_can_be_written, read_trace, spans_in
from course_lib.runtime import machine, stop
from course_lib.runtime.interrupt import exiting_on_interrupt
from course_lib.runtime.stop import REQUEUE
from course_lib.runtime.words import counted
from course_lib.train.settings import Settings

CLUSTER_OPTIONS = (
    ("nodes", types.count, "NODES", "how many (default: 2)"),
    ("gpus-per-node", types.number(0, 1000), "GPUS", "default: 8; 0 for none"),
    ("ranks-per-node", types.count, "RANKS", "default: one per GPU"),
    ("cpus-per-rank", types.count, "CORES", "default: 4 with a GPU, otherwise 1"),
    ("memory", types.slurm_memory, "MEMORY", "per node, like 64G (default: the cluster's)"),
    ("time", types.slurm_time, "TIME", "the job's time limit (default: 1:00:00, an hour)"),
    ("partition", types.sbatch_word, "PARTITION", "default: the cluster's"),
    ("account", types.sbatch_word, "ACCOUNT", "default: yours"),
)
SLURM_OPTIONS = (*(row[0].replace("-", "_") for row in CLUSTER_OPTIONS), "sbatch")


class JobFailed(RuntimeError):
    """A training run ended before its time. The message says why, and how to continue."""


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course run`, `course train`, `course plot` and `course stragglers`."""
    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        usage="course run [OPTIONS] FILE.py:FUNCTION [NAME=VALUE ...] [-- WORD ...]",
        description="Run a function from a file on several ranks. Under torchrun, this process is one of its ranks. "
        "Everything after -- becomes sys.argv[1:], for a function that parses its own options: "
        "course run train.py:main --ranks 4 -- --lr 3",
    )
    run.add_argument("target", type=types.words, metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="arguments for the function")
    option(run, "--ranks", "how many (default: 2; under torchrun, set by torchrun)", types.ranks)
    option(run, "--timeout", "seconds; 0 waits forever (default: 60)", types.seconds, default=60.0)
    option(run, "--timeline", "draw the recorded spans to a file", types.picture, "PICTURE.png")
    add_cluster_options(run)
    run.set_defaults(run=_run)
    _add_train(commands)
    plot = commands.add_parser("plot", help="plot the loss of training runs from their logs")
    option(plot, "logs", "a file that `course train --log LOG` wrote", metavar="LOG", nargs="+")
    option(plot, "--out", "the file to write", types.picture, "PICTURE.png", required=True)
    plot.set_defaults(run=_plot)
    stragglers = commands.add_parser("stragglers", help="find the rank that the others wait for, from a trace of a run")
    option(stragglers, "trace", "a file that `course train --profile` wrote", metavar="TRACE")
    timeline = "draw the ranks' timeline: waiting for input, computation, exposed communication"
    option(stragglers, "--out", timeline, types.picture, "PICTURE.png")
    stragglers.set_defaults(run=_stragglers)


def _add_train(commands: argparse._SubParsersAction) -> None:
    """Add `course train`, with an option for each field of `Settings` that has a help text."""
    train = commands.add_parser(
        "train",
        help="train an LSTM with any of the course's strategies",
        description="Train an LSTM on several ranks. Under torchrun, this process is one of its ranks. With "
        "--checkpoint, SIGTERM, SIGUSR1, SIGHUP and --time-limit save a checkpoint and end the run with exit status "
        f"{REQUEUE}: continue it with --resume.",
    )
    strategies = "single, ddp, accumulation, model, tensor, pipeline, hybrid, fsdp, or module:Class for your own"
    option(train, "strategy", strategies, metavar="STRATEGY")
    train.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="options for the strategy")
    option(train, "--ranks", "how many (default: 2, or 1 for single; under torchrun, set by torchrun)", types.ranks)
    for each in filter(lambda each: each.metadata, fields(Settings)):
        name, help_, limits = each.name, each.metadata["help"], each.metadata["limits"]
        default: Any = each.default
        names = [f"--{name.replace('_', '-')}"]
        if name == "log":
            names.append("--log-file")  # torchrun parses its script's options, too, and takes --log for its --log-dir
        if default is False:
            train.add_argument(*names, action="store_true", help=help_)
            continue
        kind: Callable[[str], Any] = types.number(*limits, kind=type(default)) if limits else types.words
        if name == "time_limit":
            kind = types.time_limit
        if default is not None and "default" not in help_:
            help_ += f" (default: {default})"
        train.add_argument(*names, type=kind, default=default, help=help_, **each.metadata["more"])
    profile = "run a few updates under PyTorch's profiler and write a trace of all ranks, for ui.perfetto.dev"
    option(train, "--profile", profile, metavar="FILE")
    add_cluster_options(train)
    option(train, "--print", "with --slurm: print the script instead of submitting it", bool)
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    prints, under_torchrun = True, machine.started_by_torchrun()
    if under_torchrun:
        prints = torchrun.speak_as_rank() == 0
    elif not options.slurm:
        warm_up()  # the ranks' server imports torch while this process does
    try:
        return _train_job(options, under_torchrun, prints)
    except (ValueError, JobFailed) as error:
        if prints:
            raise
        return status_of(error)  # rank 0 says the same


def _train_job(options: argparse.Namespace, under_torchrun: bool, prints: bool) -> int:
    with exiting_on_interrupt():
        from course_lib.train.checkpoint.files import CheckpointError
        from course_lib.train.job import check_names, check_ranks, launch_job, resume_hint, run_job_as_rank
        from course_lib.train.log import LogError, NotFinite

    settings = Settings(
        **{each.name: getattr(options, each.name) for each in fields(Settings) if each.metadata},
        strategy=options.strategy,
        options=parse(options.arguments),
        profile=options.profile is not None,
    )
    choose_backend(options)
    if options.profile is not None:
        check_can_be_written(options.profile)
    place = place_of(options, [word for word in options.words if not word.startswith("--pri")])  # without --print
    if options.print:
        if place is None:
            raise BadUsage("--print shows the script of a Slurm job; add --slurm, or leave it out")
        if settings.profile:
            raise BadUsage("--profile needs `course` to watch the job until it ends: leave out --print or --profile")
        check_names(settings)
        check_ranks(settings, place.ranks, ranks_here=0)
        print(place.script(), end="")
        return 0
    try:
        ranks = place.ranks if place else options.ranks or (1 if settings.strategy == "single" else 2)
        if under_torchrun:
            run = run_job_as_rank(settings, options.peer_timeout)
        else:
            run = launch_job(settings, ranks, on=place)
    except (NotFinite, CheckpointError, LogError) as error:
        raise JobFailed(f"{error}{resume_hint(settings)}") from error
    except LaunchError as error:
        status = complain(error)
        has_ended = not isinstance(error, Detached)
        if has_ended and (prints or isinstance(error, PeersLost)) and (hint := resume_hint(settings)):
            complain(f"the job has ended{hint}")
        return status
    except KeyboardInterrupt:
        if prints:
            complain(f"interrupted; all ranks have been stopped{resume_hint(settings)}")
        return 130
    if run is None:  # only rank 0 of a torchrun job has the results
        return REQUEUE if stop.request.obeyed else 0
    result = run[0]
    print("{updates} updates, loss {loss:.4f}, {tokens per second:,.0f} tokens/s".format(**result), end="")
    print(f", MFU {result['mfu']:.1%}" if "mfu" in result else "", end="")
    print(f", {result['mesh']}" if "mesh" in result else "")
    if options.profile is not None:
        trace = run.trace(options.profile)
        print(f"the trace is in {trace}: open it at ui.perfetto.dev, or see `course stragglers {options.profile}`")
    if "stopped" in result:
        complain(f"stopped by {result['stopped']}{resume_hint(settings)}")
        return REQUEUE
    return 0


def _stragglers(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.launcher.tracing.stragglers import find_stragglers

    events = read_trace(options.trace)
    (ranks, spans), (collectives, core_waits) = spans_in(events), arrivals_in(events)
    print(find_stragglers(ranks, collectives, spans, core_waits))
    if options.out is not None:
        draw_timeline(options.trace).save(options.out)
        print(f"{options.out}: the timeline")
    return 0


def _plot(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.train.losses_picture import draw_losses

    draw_losses(*options.logs).save(options.out)
    print(f"{options.out}: the loss, update by update")
    return 0


def _run(options: argparse.Namespace) -> int:
    choose_backend(options)
    target, words, argv = options.target, options.arguments, options.argv
    try:
        if machine.started_by_torchrun():
            recorded = options.timeline is not None
            run = torchrun.run_rank(target, words, peer_timeout=options.peer_timeout, record=recorded, argv=argv)
        else:
            place, timeout = place_of(options), options.timeout or None
            ranks = place.ranks if place else options.ranks or 2
            run = torchrun.run_job(target, words, ranks=ranks, timeout=timeout, on=place, argv=argv)
    except KeyboardInterrupt:
        return complain("interrupted; all ranks have been stopped", status=130)
    if run is None:
        return 0
    for rank, value in enumerate(run):
        print(f"rank {rank} returned {value!r}")
    print(f"{counted(len(run), 'rank')}, {run.seconds:.2f} s")
    if options.timeline:
        draw_timeline(run).save(options.timeline)
    return 0


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """Add the options for where a job runs."""
    help_ = "on several machines, seconds a rank waits for the others before it gives up; 0 waits forever"
    default = "default: PyTorch's, 10 to 30 minutes"
    option(command, "--peer-timeout", f"{help_} ({default})", types.patience, "SECONDS")
    backend = "how GPUs communicate; ranks that share a GPU need a newer NCCL (default: NCCL where possible)"
    command.add_argument("--backend", choices=("nccl", "gloo"), help=backend)
    options = command.add_argument_group(
        "on a Slurm cluster", "wait in its queue, run on its nodes, show the output here"
    )
    option(options, "--slurm", "submit a job; the options below determine --ranks", bool)
    for name, kind, metavar, description in CLUSTER_OPTIONS:
        option(options, f"--{name}", description, kind, metavar)
    option(options, "--sbatch", "an extra option for sbatch", types.sbatch_word, "OPTION", action="append")


def choose_backend(options: argparse.Namespace) -> None:
    """Set the backend for this process's ranks; raise `BadUsage` if they cannot use it."""
    if not options.backend:
        return
    os.environ[machine.BACKEND] = options.backend
    if options.backend == "nccl" and not options.slurm:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", options.ranks or 2))
        if trouble := machine.why_not_nccl(ranks):
            raise BadUsage(f"--backend nccl: {trouble}")


def place_of(options: argparse.Namespace, command: Sequence[str] = ()) -> Slurm | None:
    """Return the cluster to run on (its nodes run `command`, or a function that is sent), or None for this machine."""
    slurm_options = {name: value for name in SLURM_OPTIONS if (value := getattr(options, name)) is not None}
    if options.slurm:
        extra = slurm_options.pop("sbatch", [])
        place = Slurm(**slurm_options, options=extra, peer_timeout=options.peer_timeout, command=command)
        if options.ranks:
            place.check(options.ranks)
        return place
    if slurm_options:
        name = next(iter(slurm_options)).replace("_", "-")
        raise BadUsage(f"--{name} is for a Slurm cluster; add --slurm, or leave it out")
    if (options.ranks or 0) > MAX_RANKS:
        raise BadUsage(f"--ranks {options.ranks}: give a number of ranks from 1 to {MAX_RANKS}, or more with --slurm")
    return None
