"""A text file of any size as tokens on the disk: made once, and read by all ranks through the same memory.

They lie beside the text, in `NAME.tokens-KEY`, or in the user's cache folder if nothing can be written there. The key
follows from the text's size, time, beginning and end: a text that has changed gets other tokens.

The text is cut into words without ever having all of it in memory. Words get numbers in the order in which they are
met. When all are counted, the most frequent ones get the small numbers of the vocabulary, as `Vocabulary.of` gives
them.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy
import torch
from torch import Tensor

from course_lib.data.batch import Batch
from course_lib.data.text import PAD, SENTENCE_END, UNKNOWN, CorpusError, Vocabulary, cut, next_token_batch, open_text

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


FORMAT = 1  # of the files; another number makes other keys
LONGEST = 256  # steps of a sequence: what has no end of sentence for longer is cut there
SAMPLE = 2**16  # bytes of the text's beginning, and of its end, that decide on the key
FILES = ("tokens", "starts", "steps")
UNUSABLE = (OSError, ValueError, KeyError, TypeError)  # what loading raises where tokens are missing or not whole

ShowBytes = Callable[[int, int], None]  # how many bytes of the text have been read, and of how many


@dataclass(frozen=True)
class TokenFile:
    """The tokens of a text, as one stream and as sequences, mapped into memory: what nobody reads takes none."""

    vocabulary: Vocabulary
    tokens: Tensor  # (n,) uint16, or int32 for a large vocabulary
    starts: numpy.ndarray  # (sequences,) int64: where in the stream each begins
    lengths: numpy.ndarray  # (sequences,) uint16: how many steps each has in a batch, one fewer than its tokens

    def batch(self, indices: Iterable[int]) -> Batch:
        """These sequences, padded to the longest; at every step the next token is wanted."""
        places = [(int(self.starts[index]), int(self.lengths[index])) for index in indices]
        chosen = [self.tokens[start : start + steps + 1].to(torch.int64) for start, steps in places]
        if not chosen:
            return next_token_batch([self.tokens[:2].to(torch.int64)]).rows([])
        return next_token_batch(chosen)


def open_tokens(path: str | Path, most_common: int | None = None, show: ShowBytes | None = None) -> TokenFile:
    """The tokens of a UTF-8 text file, made if they are not there yet. `show` is told how far that is."""
    path = Path(path)
    with open_text(path):  # refused here, if it is no text that can be read
        name = f"{_short(path)}.tokens-{_key(path, most_common)}"
    folders = [path.absolute().parent, cache_folder()]
    for folder in folders:
        with contextlib.suppress(*UNUSABLE):
            return _load(folder / name)
    refusal: OSError | None = None
    for folder in folders:
        try:
            _make(path, folder / name, most_common, show)
            return _load(folder / name)
        except OSError as error:
            refusal = refusal or error
    reason = refusal.strerror if refusal else ""
    raise CorpusError(
        f"the tokens of {path} cannot be written into {folders[0]} ({reason}), nor into {folders[1]}: make room there"
    ) from refusal


def cache_folder() -> Path:
    """Where tokens lie if they cannot lie beside their text."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course"


def sequences_of(sentences: numpy.ndarray, longest: int = LONGEST) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(starts, steps) of the sequences to train on, from the number of tokens in each sentence.

    A sentence of n tokens has n - 1 steps. One that has more than `longest` becomes several sequences; each begins with
    the token that was the last target before, so no step is lost. A sentence of one token has none.
    """
    begins, steps = numpy.cumsum(sentences) - sentences, numpy.maximum(sentences - 1, 0)
    pieces = -(-steps // longest)
    first = numpy.cumsum(pieces) - pieces
    before = (numpy.arange(pieces.sum()) - numpy.repeat(first, pieces)) * longest
    return numpy.repeat(begins, pieces) + before, numpy.minimum(numpy.repeat(steps, pieces) - before, longest)


def _short(path: Path) -> str:
    """The beginning of a file's name: a folder that is named after it must not be too long."""
    return path.name[:60]


def _key(path: Path, most_common: int | None) -> str:
    """Another one for every other text, as far as its size, time, beginning and end tell."""
    facts = path.stat()
    with path.open("rb") as file:
        beginning = file.read(SAMPLE)
        file.seek(max(0, facts.st_size - SAMPLE))
        sample = beginning + file.read(SAMPLE)
    numbers = f"{FORMAT} {LONGEST} {most_common} {facts.st_size} {facts.st_mtime_ns} "
    return hashlib.sha256(numbers.encode() + sample).hexdigest()[:16]


def _load(folder: Path) -> TokenFile:
    """What `_make` wrote. Raises OSError or ValueError if it is not there, or not whole."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    mapped = {}
    for name in FILES:
        kind, size = numpy.dtype(facts[name][0]), facts[name][1]
        if (folder / f"{name}.bin").stat().st_size != size * kind.itemsize:
            raise ValueError(f"{folder / name}.bin is not whole")
        # "c": nobody writes; torch would warn of memory that cannot be written.
        mapped[name] = numpy.memmap(folder / f"{name}.bin", dtype=kind, mode="c", shape=(size,))
    vocabulary = Vocabulary(tuple(facts["vocabulary"]))
    return TokenFile(vocabulary, torch.from_numpy(mapped["tokens"]), mapped["starts"], mapped["steps"])


def _make(path: Path, final: Path, most_common: int | None, show: ShowBytes | None) -> None:
    """Write the files aside, and give the folder its name when all is there."""
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{_short(path)}.", dir=final.parent))
    try:
        _write(aside, tokenize(path, aside, most_common, show), path)
        aside.chmod(0o755)  # whoever may read the text
        _put_in_place(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for older in set(glob.glob(f"{glob.escape(str(final.parent / _short(path)))}.tokens-*")) - {str(final)}:
        shutil.rmtree(older, ignore_errors=True)  # who still reads them has them mapped


def _put_in_place(aside: Path, final: Path) -> None:
    """Somebody else may have been quicker, and have written the same; what is damaged goes."""
    try:
        aside.rename(final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        try:
            _load(final)
        except UNUSABLE:
            shutil.rmtree(final)
            aside.rename(final)


def _write(folder: Path, tokens: Tokens, path: Path) -> None:
    starts, steps = sequences_of(tokens.sentences)
    if not len(starts):
        raise CorpusError(f"{path} has no sentence of at least 2 tokens: give a longer text")
    numbered = (("starts", starts.astype(numpy.int64)), ("steps", steps.astype(numpy.uint16)))
    facts = {"tokens": (tokens.dtype.name, tokens.count), "vocabulary": tokens.vocabulary.tokens}
    for name, values in numbered:
        facts[name] = values.dtype.name, len(values)
        values.tofile(folder / f"{name}.bin")
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    for file in folder.iterdir():
        with file.open("rb+") as open_file:
            os.fsync(open_file.fileno())
