"""Every line of a sharded text is read once, by one worker of one rank, and nobody reads more than his files."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.utils.data import DataLoader

from course_lib.core.text import ShardedText, Vocabulary, by_rank_only, write_shards

LINES = [f"line {number} of many" for number in range(30)]
TEXT = "\n".join(LINES) + "\n\none\n"  # an empty line and one of a single word: no sequences
VOCABULARY = Vocabulary.of(TEXT.split())


@pytest.fixture
def files(tmp_path):
    return write_shards(TEXT, tmp_path, 8)


def lines_read(files, ranks: int, workers: int, **options) -> tuple[Counter, list[int]]:
    """How often each line was read, by all ranks, and how many bytes each rank has read."""
    read, byte_counts = Counter(), []
    for rank in range(ranks):
        dataset = ShardedText(files, VOCABULARY, rank, ranks, **options)
        for line in DataLoader(dataset, batch_size=None, num_workers=workers):
            read[" ".join(VOCABULARY.decode(line))] += 1
        byte_counts.append(dataset.bytes_read)
    return read, byte_counts


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (1, 1), (2, 2), (4, 2)])
def test_every_line_is_read_once_whatever_the_ranks_and_workers(files, ranks, workers):
    read, byte_counts = lines_read(files, ranks, workers)
    assert read == Counter(LINES)
    assert sum(byte_counts) == sum(file.stat().st_size for file in files)


def test_a_rank_reads_only_its_own_files(files):
    _, byte_counts = lines_read(files, ranks=2, workers=2)
    assert byte_counts == [sum(files[n].stat().st_size for n in mine) for mine in ((0, 4, 1, 5), (2, 6, 3, 7))]


def test_readers_that_forget_the_workers_read_every_line_as_often_as_there_are_workers(files):
    read, byte_counts = lines_read(files, ranks=2, workers=2, reader=by_rank_only)
    assert read == Counter(LINES * 2)
    assert sum(byte_counts) == 2 * sum(file.stat().st_size for file in files)


def test_more_readers_than_files_are_refused(files):
    with pytest.raises(ValueError, match=r"8 files for 10 readers \(ranks x workers\): write more"):
        lines_read(files, ranks=5, workers=2)
    with pytest.raises(ValueError, match="rank=2: with ranks=2"):
        ShardedText(files, VOCABULARY, 2, 2)


def test_shards_hold_the_lines_in_turn(tmp_path):
    first, second = write_shards("a 1\nb 2\nc 3", tmp_path, 2)
    assert (first.read_text(), second.read_text()) == ("a 1\nc 3", "b 2\n")
    with pytest.raises(ValueError, match="shards=0"):
        write_shards("a", tmp_path, 0)
