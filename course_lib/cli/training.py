"""`course run` and `train`, here or on a Slurm cluster; `course plot` and `stragglers` read their logs and traces."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from course_lib import machine
from course_lib.cli import arguments as types
from course_lib.cli.arguments import BadUsage, complain, detached, interrupted, option
from course_lib.interrupt import exiting_on_interrupt
from course_lib.launchers import Detached, LaunchError, PeersLost, Run, Slurm, torchrun, warm_up
from course_lib.launchers.local import MAX_RANKS
from course_lib.launchers.process import stop
from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.slurm import BadPlace
from course_lib.launchers.target import BadJob, parse
from course_lib.launchers.tracing.trace_file import (
    TraceError,
    check_can_be_written,
    collectives_in,
    core_waits_in,
    read_trace,
    spans_in,
)

if TYPE_CHECKING:
    from course_lib.training.settings import Settings

TRAIN_OPTIONS = (
    *("strategy", "data", "model", "updates", "batch", "tokens", "hidden", "layers", "learning_rate", "seed"),
    *("precision", "checkpoint", "every", "async_checkpoint", "resume", "time_limit", "recompute", "compile"),
)


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course run`, `course train`, `course plot` and `course stragglers`."""
    _add_run(commands)
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
    train = commands.add_parser(
        "train",
        help="train an LSTM with any of the course's strategies",
        description="Train an LSTM on several ranks. Under torchrun, this process is one of its ranks. With "
        "--checkpoint, SIGTERM, SIGUSR1, SIGHUP and --time-limit save a checkpoint and end the run with exit status "
        f"{REQUEUE}: continue it with --resume.",
    )
    option(
        train,
        "strategy",
        "single, ddp, accumulation, model, tensor, pipeline, hybrid, fsdp, or module:Class for your own",
        metavar="STRATEGY",
    )
    train.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="options for the strategy")
    option(train, "--ranks", "how many (default: 2, or 1 for single; under torchrun, set by torchrun)", types.ranks)
    option(
        train,
        "--data",
        "default: the adding problem; your own function returns data with a length and batch(indices); a text "
        "FILE is tokenized once, and its tokens are cached next to it, in FILE.tokens-..., or in ~/.cache/course",
        metavar="adding|text|FILE|FILE.py:FUNCTION",
        default="adding",
    )
    option(
        train,
        "--model",
        "a model other than the LSTM: the small GPT of lesson 12, or your own function that returns a list of blocks",
        metavar="gpt|FILE.py:FUNCTION",
    )
    for name, kind, default, description in (
        ("updates", types.count, 300, "how many optimizer steps"),
        ("batch", types.count, 64, "global batch size: sequences of the adding problem per update, over all ranks"),
        ("tokens", types.count, 4096, "global batch size for text: tokens per update, over all ranks"),
        ("hidden", types.count, 64, "the hidden size of a layer"),
        ("layers", types.count, 2, "how many layers"),
        ("seed", types.seed, 0, "the seed of the weights and the data order"),
        ("every", types.count, 50, "updates between checkpoints"),
        ("learning-rate", types.learning_rate, 0.01, "Adam's learning rate"),
    ):
        option(train, f"--{name}", f"{description} (default: {default})", kind, default=default)
    train.add_argument(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        default="fp32",
        help="the precision of the forward pass; weights stay in fp32, and fp16 scales the loss (default: fp32)",
    )
    folder = "save checkpoints in this folder, and keep the last two"
    option(train, "--checkpoint", folder, metavar="FOLDER")
    beside = "write checkpoints in the background, from a copy in memory, while training continues"
    option(train, "--async-checkpoint", beside, bool)
    option(train, "--resume", "continue from the folder's last checkpoint", bool)
    limit = "after this time, save a checkpoint and stop; continue with --resume"
    option(train, "--time-limit", limit, types.time_limit, "SECONDS|H:MM:SS")
    # torchrun also parses its script's options, and mistakes --log for an abbreviation of one of its own.
    log = (
        "write a line of JSON per update, for `course plot`, or log to TensorBoard; give it twice to do both; under "
        "torchrun, use --log-file"
    )
    train.add_argument(
        "--log", "--log-file", action="append", default=[], type=types.words, metavar="FILE|tensorboard:DIR", help=log
    )
    recompute = "drop activations and recompute them in the backward pass (pipeline and hybrid)"
    option(train, "--recompute", recompute, bool)
    compiled = "compile every block except LSTM layers with torch.compile"
    option(train, "--compile", compiled, bool)
    profile = "run a few updates under PyTorch's profiler and write a trace of all ranks, for ui.perfetto.dev"
    option(train, "--profile", profile, metavar="FILE")
    add_cluster_options(train)
    shown = "with --slurm: print the script instead of submitting it"
    option(train, "--print", shown, bool)
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    under_torchrun, prints = machine.started_by_torchrun(), True
    if under_torchrun:
        prints = torchrun.speak_as_rank() == 0  # the other ranks would print the same
    elif not options.slurm:
        warm_up()  # the ranks' server imports torch while this process does
    with exiting_on_interrupt():
        from course_lib.training.checkpoint.folder import CheckpointError
        from course_lib.training.job import launch_job, resume_hint, run_job_as_rank
        from course_lib.training.log import LogError
        from course_lib.training.metrics import NotFinite
        from course_lib.training.settings import BadSettings, Settings, split_logs

    settings = Settings(**{name: getattr(options, name) for name in TRAIN_OPTIONS})
    try:
        choose_backend(options)
        settings = replace(settings, **split_logs(options.log), options=parse(options.arguments))
        settings = replace(settings, profile=options.profile is not None)
        if options.profile is not None:
            check_can_be_written(options.profile)
        place, peer_timeout = place_of(options, _words_without_print(options)), options.peer_timeout
        if options.print:
            return _print_script(settings, place)
        ranks = place.ranks if place else options.ranks or (1 if settings.strategy == "single" else 2)
        run = run_job_as_rank(settings, peer_timeout) if under_torchrun else launch_job(settings, ranks, on=place)
    except (BadPlace, BadJob, BadSettings, TraceError) as error:
        return complain(error, status=2) if prints else 2
    except (NotFinite, CheckpointError, LogError) as error:
        return complain(f"{error}{resume_hint(settings)}") if prints else 1
    except Detached as error:
        return detached(error)
    except LaunchError as error:
        status = complain(error)
        if (prints or isinstance(error, PeersLost)) and (hint := resume_hint(settings)):
            print(f"course: the job has ended{hint}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return interrupted(f"; all ranks have been stopped{resume_hint(settings)}") if prints else 130
    if run is not None:
        more = f", MFU {run[0]['mfu']:.1%}" if "mfu" in run[0] else ""
        more += f", {run[0]['mesh']}" if "mesh" in run[0] else ""
        print("{updates} updates, loss {loss:.4f}, {tokens per second:,.0f} tokens/s".format(**run[0]) + more)
        if options.profile is not None and (status := _write_trace(run, options.profile)):
            return status
        if "stopped" in run[0]:
            print(f"course: stopped by {run[0]['stopped']}{resume_hint(settings)}", file=sys.stderr)
            return REQUEUE
    return REQUEUE if stop.request.obeyed else 0


def _words_without_print(options: argparse.Namespace) -> list[str]:
    """Return the words as typed, without --print or an abbreviation of it."""
    return [word for word in options.words if not (word.startswith("--pri") and "--print".startswith(word))]


def _print_script(settings: Settings, place: Slurm | None) -> int:
    """Print the Slurm script of the job."""
    from course_lib.training.settings import check_numbers

    if place is None:
        raise BadUsage("--print shows the script of a Slurm job; add --slurm, or leave it out")
    if settings.profile:
        raise BadUsage("--profile needs `course` to watch the job until it ends: leave out --print or --profile")
    check_numbers(settings, place.ranks)
    print(place.script(), end="")
    return 0


def _write_trace(run: Run, path: str) -> int:
    try:
        print(f"the trace is in {run.trace(path)}: open it at ui.perfetto.dev, or see `course stragglers {path}`")
    except TraceError as error:
        return complain(error)
    return 0


def _stragglers(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.launchers.tracing.stragglers import find_stragglers

    try:
        events = read_trace(options.trace)
        ranks, spans = spans_in(events)
        print(find_stragglers(ranks, collectives_in(events), spans, core_waits_in(events)))
        if options.out is not None:
            from course_lib import pictures

            pictures.timeline(options.trace).save(options.out)
            print(f"{options.out}: the timeline")
    except TraceError as error:
        return complain(error, status=2)
    return 0


def _plot(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.pictures import losses
        from course_lib.training.log import LogError

    try:
        losses(*options.logs).save(options.out)
    except LogError as error:
        return complain(error, status=2)
    print(f"{options.out}: the loss, update by update")
    return 0


SLURM_OPTIONS = (
    *("nodes", "gpus_per_node", "ranks_per_node", "cpus_per_rank", "memory"),
    *("time", "partition", "account", "sbatch"),
)


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
    for name, kind, metavar, description in (
        ("nodes", types.count, "NODES", "how many (default: 2)"),
        ("gpus-per-node", types.whole_number(0, 1000), "GPUS", "default: 8; 0 for none"),
        ("ranks-per-node", types.count, "RANKS", "default: one per GPU"),
        ("cpus-per-rank", types.count, "CORES", "default: 4 with a GPU, otherwise 1"),
        ("memory", types.slurm_memory, "MEMORY", "per node, like 64G (default: the cluster's)"),
        ("time", types.slurm_time, "TIME", "the job's time limit (default: 1:00:00, an hour)"),
        ("partition", types.sbatch_word, "PARTITION", "default: the cluster's"),
        ("account", types.sbatch_word, "ACCOUNT", "default: yours"),
    ):
        option(options, f"--{name}", description, kind, metavar)
    options.add_argument(
        "--sbatch", type=types.sbatch_word, action="append", metavar="OPTION", help="an extra option for sbatch"
    )


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


def _add_run(commands: argparse._SubParsersAction) -> None:
    """Add `course run`."""
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


def _run(options: argparse.Namespace) -> int:
    try:
        choose_backend(options)
        if machine.started_by_torchrun():
            run = torchrun.run_rank(
                options.target,
                options.arguments,
                peer_timeout=options.peer_timeout,
                record=options.timeline is not None,
                argv=options.argv,
            )
        else:
            place, timeout = place_of(options), options.timeout or None
            ranks = place.ranks if place else options.ranks or 2
            run = torchrun.run_job(
                options.target, options.arguments, ranks=ranks, timeout=timeout, on=place, argv=options.argv
            )
    except (BadPlace, BadJob) as error:
        return complain(error, status=2)
    except Detached as error:
        return detached(error)
    except LaunchError as error:
        return complain(error)
    except KeyboardInterrupt:
        return interrupted("; all ranks have been stopped")
    if run is not None:
        for rank, value in enumerate(run):
            print(f"rank {rank} returned {value!r}")
        print(f"{len(run)} {'rank' if len(run) == 1 else 'ranks'}, {run.seconds:.2f} s")
        if options.timeline:
            from course_lib import pictures

            pictures.timeline(run).save(options.timeline)
    return 0
