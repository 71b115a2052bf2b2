"""What one submission may use."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.launchers.process.patience import Patience

GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    seconds: float = 60.0  # that it could have worked: what a busy machine takes does not count
    memory: int = 16 * GIGABYTE  # that a process may map: torch with CUDA maps several before it does anything
    total_memory: int = 4 * GIGABYTE  # in use, of all its processes together
    processes: int = 200
    disk: int = 64 << 20
    output: int = 32 << 20

    @property
    def patience(self) -> Patience:
        """Its time: on a processor, and, on the busiest machine, on the wall."""
        return Patience(self.seconds, cpu=2 * self.seconds, longest=10 * self.seconds)

    def of_resource(self) -> dict[str, int]:
        """Those that the kernel enforces, for every process of the submission."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.disk,
            "RLIMIT_CORE": 0,
        }
