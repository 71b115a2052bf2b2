"""A text file cut into words without ever having all of it in memory.

Words get numbers in the order in which they are met. When all are counted, the most frequent ones get the small numbers
of the vocabulary, as `Vocabulary.of` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy

from course_lib.data.text import PAD, SENTENCE_END, UNKNOWN, CorpusError, Vocabulary, cut, open_text

CHUNK = 2**22  # characters read at a time
NUMBERS_AT_A_TIME = 2**22


@dataclass(frozen=True)
class Tokens:
    """What is in `tokens.bin`, and how many tokens each sentence has, in order."""

    vocabulary: Vocabulary
    dtype: numpy.dtype
    count: int
    sentences: numpy.ndarray  # (sentences,) int64; their sum is the count


class Numbers(dict):
    """A number for each word, in the order in which they are met."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


def tokenize(path: Path, folder: Path, most_common: int | None, show: Callable[[int, int], None] | None) -> Tokens:
    """Write `tokens.bin`, the text's tokens with 2 bytes each if the vocabulary allows, else with 4, into `folder`."""
    numbers, sentences = Numbers(), []
    met = folder / "met.bin"
    with met.open("wb") as file:
        for words, lengths in pieces_of(path, show):
            sentences.append(numpy.array(lengths, dtype=numpy.int64))
            numpy.fromiter(map(numbers.__getitem__, words), numpy.int32, len(words)).tofile(file)
    count = sum(int(lengths.sum()) for lengths in sentences)
    if count < 2:
        raise CorpusError(f"{path} has fewer than 2 tokens ({count}): give a longer text")
    vocabulary, new_numbers = _vocabulary(numbers, _chunks(met), most_common)
    with (folder / "tokens.bin").open("wb") as file:
        for chunk in _chunks(met):
            new_numbers[chunk].tofile(file)
    met.unlink()
    return Tokens(vocabulary, new_numbers.dtype, count, numpy.concatenate(sentences))


def pieces_of(
    path: Path, show: Callable[[int, int], None] | None = None, chunk: int = CHUNK
) -> Iterator[tuple[list[str], list[int]]]:
    """Piece by piece, the words of a text, and how many each sentence that *ends* there has in all pieces together.

    A sentence without an end is handed out in parts as soon as it is longer than a chunk. A word without an end is cut.
    """
    size, rest, begun = path.stat().st_size, "", 0
    with open_text(path) as file:
        while text := file.read(chunk):
            _check_is_text(path, text)
            *whole, rest = SENTENCE_END.split(rest + text)
            part, rest = _part_of(rest, chunk)
            sentences, open_words = [cut(sentence) for sentence in whole], cut(part)
            lengths = [len(words) for words in sentences]
            if lengths:
                lengths[0], begun = lengths[0] + begun, 0
            begun += len(open_words)
            yield list(chain(*sentences, open_words)), lengths
            if show:
                show(file.buffer.tell(), size)
    words = cut(rest)
    yield words, [begun + len(words)]


def _part_of(rest: str, chunk: int) -> tuple[str, str]:
    """What to hand out of a sentence that has not ended, and what to keep: the last word may go on."""
    if len(rest) <= chunk:
        return "", rest
    last = max(rest.rfind(space) for space in " \n\t")
    stop = len(rest[: last + 1].rstrip())
    if len(rest) - stop > chunk:
        stop = len(rest)
    return rest[:stop], rest[stop:]


def _check_is_text(path: Path, text: str) -> None:
    if "\0" in text:
        raise CorpusError(f"{path} does not look like text: give a UTF-8 text file")


def _vocabulary(
    numbers: Numbers, chunks: Iterator[numpy.ndarray], most_common: int | None
) -> tuple[Vocabulary, numpy.ndarray]:
    """The vocabulary, and the number in it of each word by the number that it had before."""
    counts = numpy.zeros(len(numbers), dtype=numpy.int64)
    for chunk in chunks:
        counts += numpy.bincount(chunk, minlength=len(numbers))
    words = list(numbers)
    order = sorted(range(len(words)), key=lambda number: (-counts[number], words[number]))[:most_common]
    vocabulary = Vocabulary((PAD, UNKNOWN, *(words[number] for number in order)))
    kind = numpy.uint16 if len(vocabulary) <= 2**16 else numpy.int32
    new_numbers = numpy.full(len(words), vocabulary.indices[UNKNOWN], dtype=kind)
    new_numbers[order] = numpy.arange(2, len(vocabulary))
    return vocabulary, new_numbers


def _chunks(file: Path) -> Iterator[numpy.ndarray]:
    with file.open("rb") as open_file:
        while len(chunk := numpy.fromfile(open_file, numpy.int32, NUMBERS_AT_A_TIME)):
            yield chunk
