"""Run a command so that ranks sharing a GPU talk over NCCL.

    python -m course_lib.launcher.jobs.shared_gpu course train pipeline --ranks 4
    python -m course_lib.launcher.jobs.shared_gpu python -m pytest tests/gpu

PyTorch ships an NCCL that refuses two ranks on one GPU; NCCL 2.30 and newer allow it. This command downloads a new
enough NCCL from PyPI once, preloads it, and runs NVIDIA's MPS for as long as your command runs. Without MPS, ranks take
turns on the GPU, and an all-reduce takes a hundred times as long.

This runs NCCL's real code, with its real kernels and protocols, except that no bytes leave the GPU's memory. Use it to
test and to learn. You don't need it if every rank has its own GPU.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from course_lib.runtime.machine import SHARES_GPUS, SHARING_COMMAND

LIBRARY = "COURSE_LIB_NCCL"  # the path of a libnccl.so.2, for machines without a network
NAME = "libnccl.so.2"
MPS = "nvidia-cuda-mps-control"
# More channels mean more thread blocks spinning at the same time: without this limit, we saw 4 ranks on one GPU hang.
CHANNELS = "2"


class CannotShare(RuntimeError):
    """Ranks cannot share a GPU over NCCL here. The message says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command given on the command line and return its exit status."""
    command = sys.argv[1:] if arguments is None else arguments
    if not command or command[0].startswith("-"):
        print(f"usage: {SHARING_COMMAND} COMMAND ..., for example: course train pipeline --ranks 2", file=sys.stderr)
        return 0 if command[:1] in (["-h"], ["--help"]) else 2
    try:
        library = find_library()
        preloaded = ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD", "")]))
        environment = {"NCCL_MAX_NCHANNELS": CHANNELS, **os.environ}
        environment |= {"LD_PRELOAD": preloaded, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        with mps() as mps_variables:
            return subprocess.run(command, env=environment | mps_variables).returncode
    except (CannotShare, OSError) as error:
        print(f"{SHARING_COMMAND}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def find_library() -> Path:
    """Return an NCCL that lets ranks share a GPU: the one COURSE_LIB_NCCL names, or PyPI's newest, downloaded once."""
    if path := os.environ.get(LIBRARY):
        if not Path(path).is_file():
            raise CannotShare(f"{LIBRARY}={path}: there is no such file; give the path of a {NAME}")
        return Path(path).resolve()
    import torch

    if not torch.version.cuda:
        raise CannotShare("this PyTorch was built without CUDA: install one for your GPU")
    package = f"nvidia-nccl-cu{torch.version.cuda.partition('.')[0]}"
    cached = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "course_lib" / package / NAME
    if not cached.is_file():
        _fetch(package, cached)
    return cached


def _fetch(package: str, target: Path) -> None:
    """Download the package and keep only its library, written to a temporary file and then renamed."""
    needed = ".".join(map(str, SHARES_GPUS))
    print(f"downloading {package} from PyPI, once (250 MB)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--target", folder]
        result = subprocess.run([*pip, f"{package}>={needed}"], capture_output=True, text=True)
        library = Path(folder, "nvidia", "nccl", "lib", NAME)
        if result.returncode or not library.is_file():
            reason = (result.stderr.strip().splitlines() or ["pip found nothing"])[-1]
            raise CannotShare(
                f"{package} {needed} or newer cannot be downloaded ({reason}): get its wheel elsewhere, unzip it, "
                f"and set {LIBRARY} to its nvidia/nccl/lib/{NAME}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".tmp")
        shutil.copyfile(library, partial)
        partial.replace(target)


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run a private NVIDIA Multi-Process Service (MPS) during the block. Yields the variables that point to it.

    Without MPS, ranks take turns on the GPU, which is correct but slow.
    """
    if shutil.which(MPS) is None:
        print(f"{MPS} is not installed: ranks that share a GPU will take turns on it, slowly", file=sys.stderr)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="course-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in variables.values():
            Path(path).mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | variables
        subprocess.run([MPS, "-d"], env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            yield variables
        finally:
            subprocess.run([MPS], input="quit\n", text=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
