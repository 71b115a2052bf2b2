"""Text as numbers: a corpus that needs no download, its sentences, and streams for training with a carried state.

A text may also be split over many files. A job has one reader per `DataLoader` worker on each rank, and each reads only
its share of the files.
"""

from __future__ import annotations

import copy
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from course_lib.core.batch import Batch, check_at_least, check_rank, pad

PAD, UNKNOWN = "<pad>", "<unk>"
WORD = re.compile(r"\w+|[^\w\s]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
RULED_LINE = re.compile(r"^[^\w\n]*[-=*~^]{3}[^\w\n]*$", re.MULTILINE)

Unit = Literal["word", "character"]


class CorpusError(ValueError):
    """A text that cannot be used as a corpus. The message says what to give instead."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have an index: `tokens[i]` is the token with index i."""

    tokens: tuple[str, ...]

    @classmethod
    def of(cls, tokens: Iterable[str], most_common: int | None = None) -> Vocabulary:
        """Return a text's vocabulary: `<pad>` (0) and `<unk>` (1), then its tokens, the most frequent first.

        With `most_common`, it has only this many tokens of the text; the others become `<unk>`.
        """
        if most_common is not None:
            check_at_least(1, "a vocabulary keeps at least one token of the text", most_common=most_common)
        counts = Counter(tokens)
        ordered = sorted(counts, key=lambda token: (-counts[token], token))
        return cls((PAD, UNKNOWN, *ordered[:most_common]))

    @cached_property
    def indices(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> Tensor:
        """Return (n,) int64: the index of each token, or 1 for a token that is not in the vocabulary."""
        unknown = self.indices[UNKNOWN]
        return torch.tensor([self.indices.get(token, unknown) for token in tokens], dtype=torch.int64)

    def decode(self, indices: Iterable[int]) -> list[str]:
        """Return the token of each index."""
        return [self.tokens[int(index)] for index in indices]


@dataclass(frozen=True)
class Corpus:
    """A text as one stream of tokens, and as sentences of different lengths."""

    vocabulary: Vocabulary
    tokens: Tensor  # (n,) int64: the whole text
    sentences: list[Tensor]  # each (length,) int64, at least 2 tokens

    @classmethod
    def from_python_docs(cls, unit: Unit = "word", limit: int | None = None, most_common: int | None = None) -> Corpus:
        """Return the language reference that `help()` shows. Every Python has it; its text depends on the version."""
        try:
            topics = import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise CorpusError("this Python has no pydoc_data: give your own text to Corpus.from_text") from error
        text = "\n\n".join(topics[name] for name in sorted(topics))
        # If we left in the lines under titles and in tables, a dash would be the most frequent word.
        return cls.from_text(RULED_LINE.sub("", text)[:limit], unit, most_common)

    @classmethod
    def from_text(cls, text: str, unit: Unit = "word", most_common: int | None = None) -> Corpus:
        """Return the corpus of a text cut into lowercase words and punctuation marks, or unchanged characters."""
        words = cut(text, unit)
        if len(words) < 2:
            raise CorpusError(f"the text has fewer than 2 tokens ({len(words)}): give a longer text")
        vocabulary = Vocabulary.of(words, most_common)
        sentences_of_words = (cut(sentence.strip(), unit) for sentence in SENTENCE_END.split(text))
        sentences = [vocabulary.encode(sentence) for sentence in sentences_of_words if len(sentence) >= 2]
        return cls(vocabulary, vocabulary.encode(words), sentences)

    @cached_property
    def lengths(self) -> Tensor:
        """(sentences,) int64: how many steps each sentence has in a batch, one fewer than its tokens."""
        return torch.tensor([len(sentence) - 1 for sentence in self.sentences], dtype=torch.int64)

    def batch(self, indices: Iterable[int]) -> Batch:
        """Return these sentences, padded to the longest; the target of every step is the next token."""
        return next_token_batch([self.sentences[int(index)] for index in indices])


class Streams:
    """A text read at several places at once, window by window, so that the state can be carried along.

    The tokens are cut into `streams` equal contiguous pieces. Window i is a batch (window, streams) whose column s
    begins exactly where column s of window i - 1 ended. Tokens at the end that don't fill a window are dropped.
    """

    def __init__(self, tokens: Tensor, streams: int = 8, window: int = 32) -> None:
        check_at_least(1, "give at least 1", streams=streams, window=window)
        windows = (len(tokens) - 1) // (streams * window)
        if windows < 1:
            few = f"{len(tokens)} tokens do not fill one window of {window} steps in {streams} streams"
            raise CorpusError(f"{few}: give at least {streams * window + 1}, fewer streams or a shorter window")
        used = streams * windows * window
        self.window = window
        # (streams, steps) views, because the tokens may be a memory-mapped file.
        self._inputs, self._targets = (part.reshape(streams, -1) for part in (tokens[:used], tokens[1 : used + 1]))

    @property
    def streams(self) -> int:
        return self._inputs.shape[0]

    def __len__(self) -> int:
        """Return the number of windows: the same for every rank's share."""
        return self._inputs.shape[1] // self.window

    def __getitem__(self, index: int) -> Batch:
        """Return window `index`: (window, streams) tokens, with the next token of each as its target."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no window {index}: give an index from 0 to {len(self) - 1}")
        steps = slice(index * self.window, (index + 1) * self.window)
        inputs, targets = (
            tokens[:, steps].t().to(torch.int64, memory_format=torch.contiguous_format, copy=True)
            for tokens in (self._inputs, self._targets)
        )
        lengths = torch.full((self.streams,), self.window, dtype=torch.int64)
        return Batch(inputs, targets, lengths, torch.ones_like(inputs, dtype=torch.bool))

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))

    def shard(self, rank: int, ranks: int) -> Streams:
        """Return the streams rank, rank + ranks, ...: a rank keeps its streams, so the state never has to move."""
        check_rank(rank, ranks)
        share = copy.copy(self)
        share._inputs, share._targets = self._inputs[rank::ranks], self._targets[rank::ranks]
        return share


def cut(text: str, unit: Unit = "word") -> list[str]:
    """Return lowercase words and punctuation marks, or unchanged characters."""
    if unit == "word":
        return WORD.findall(text.lower())
    if unit == "character":
        return list(text)
    raise CorpusError(f"unit={unit!r}: choose 'word' or 'character'")


def next_token_batch(sentences: list[Tensor]) -> Batch:
    """Return sentences of at least 2 tokens, padded to the longest; the target of every step is the next token.

    Without sentences it is an empty batch, of one step.
    """
    if not sentences:
        return next_token_batch([torch.zeros(2, dtype=torch.int64)]).rows([])
    return pad([sentence[:-1] for sentence in sentences], [sentence[1:] for sentence in sentences])


Reader = Callable[[int, int], tuple[int, int]]  # (rank, ranks) -> (reader, readers)


def by_rank_and_worker(rank: int, ranks: int) -> tuple[int, int]:
    """Return (reader, readers) such that every worker of every rank is a separate reader."""
    worker = get_worker_info()
    if worker is None:
        return rank, ranks
    return rank * worker.num_workers + worker.id, ranks * worker.num_workers


def by_rank_only(rank: int, ranks: int) -> tuple[int, int]:
    """A common mistake: each worker of a rank takes all of the rank's files, so every file is read several times."""
    return rank, ranks


def write_shards(text: str, folder: str | Path, shards: int) -> list[Path]:
    """Write the lines of a text into `shards` files, in turn. Returns their paths, in order."""
    check_at_least(1, "a text is cut into at least one file", shards=shards)
    lines = text.splitlines(keepends=True)
    files = [Path(folder) / f"shard-{number:05d}.txt" for number in range(shards)]
    for number, file in enumerate(files):
        file.write_text("".join(lines[number::shards]), encoding="utf-8")
    return files


class ShardedText(IterableDataset):
    """The lines of text files as words, each (length,) int64 with at least 2 words, read and cut as you iterate.

    `bytes_read` counts the bytes that all workers of this rank have read together.
    """

    def __init__(
        self,
        files: Sequence[Path],
        vocabulary: Vocabulary,
        rank: int = 0,
        ranks: int = 1,
        reader: Reader = by_rank_and_worker,
    ) -> None:
        check_rank(rank, ranks)
        self.files, self.vocabulary, self.rank, self.ranks, self.reader = files, vocabulary, rank, ranks, reader
        self._bytes_read = multiprocessing.Value("q", 0)

    @property
    def bytes_read(self) -> int:
        return self._bytes_read.value

    def __iter__(self) -> Iterator[Tensor]:
        reader, readers = self.reader(self.rank, self.ranks)
        if readers > len(self.files):
            few = f"{len(self.files)} files for {readers} readers (ranks x workers)"
            raise ValueError(f"{few}: write more files, or use fewer workers")
        for file in self.files[reader::readers]:
            content = file.read_bytes()
            with self._bytes_read.get_lock():
                self._bytes_read.value += len(content)
            lines = (cut(line) for line in content.decode("utf-8").splitlines())
            yield from (self.vocabulary.encode(line) for line in lines if len(line) >= 2)
