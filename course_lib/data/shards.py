"""A text in many files, of which each reader reads only its own.

A job has as many readers as ranks x `DataLoader` workers. Which of them reads which file is one small function.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from course_lib.data.checks import check_at_least, check_rank
from course_lib.data.text import Vocabulary, cut

Reader = Callable[[int, int], tuple[int, int]]  # (rank, ranks) -> (reader, readers)


def by_rank_and_worker(rank: int, ranks: int) -> tuple[int, int]:
    """(reader, readers): every worker of every rank is a reader of its own."""
    worker = get_worker_info()
    if worker is None:
        return rank, ranks
    return rank * worker.num_workers + worker.id, ranks * worker.num_workers


def by_rank_only(rank: int, ranks: int) -> tuple[int, int]:
    """A popular mistake: each worker of a rank takes all of the rank's files, so that all are read several times."""
    return rank, ranks


def write_shards(text: str, folder: str | Path, shards: int) -> list[Path]:
    """Write the lines of a text into so many files, in turn. Returns their paths, in order."""
    check_at_least(1, "a text is cut into at least one file", shards=shards)
    lines = text.splitlines(keepends=True)
    files = [Path(folder) / f"shard-{number:05d}.txt" for number in range(shards)]
    for number, file in enumerate(files):
        file.write_text("".join(lines[number::shards]), encoding="utf-8")
    return files


class ShardedText(IterableDataset):
    """The lines of text files as words, each (length,) int64 and at least 2 long, read and cut while you iterate.

    `bytes_read` counts what has been read, by all workers of this rank together.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        vocabulary: Vocabulary,
        rank: int = 0,
        ranks: int = 1,
        reader: Reader = by_rank_and_worker,
    ) -> None:
        check_rank(rank, ranks)
        self.files, self.vocabulary = list(files), vocabulary
        self.rank, self.ranks, self.reader = rank, ranks, reader
        self._bytes_read = multiprocessing.Value("q", 0)

    @property
    def bytes_read(self) -> int:
        return self._bytes_read.value

    def __iter__(self) -> Iterator[Tensor]:
        reader, readers = self.reader(self.rank, self.ranks)
        if readers > len(self.files):
            raise ValueError(
                f"{len(self.files)} files for {readers} readers (ranks x workers): write more, or use fewer workers"
            )
        for file in self.files[reader::readers]:
            content = Path(file).read_bytes()
            with self._bytes_read.get_lock():
                self._bytes_read.value += len(content)
            lines = (cut(line) for line in content.decode("utf-8").splitlines())
            yield from (self.vocabulary.encode(line) for line in lines if len(line) >= 2)
