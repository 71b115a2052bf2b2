"""A text file of any size as tokens on disk: tokenized once, and memory-mapped by all ranks.

The tokens are stored next to the text, in `NAME.tokens-KEY`, or if that is not writable, in the user's cache folder.
The key depends on the text's size, modification time, beginning and end, so a changed text gets new tokens.

The text is never loaded into memory as a whole. Words first get numbers in order of appearance. Once all words are
counted, they get their numbers in the vocabulary, the most frequent words first, as in `Vocabulary.of`.
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
    """What `tokens.bin` contains, and how many tokens each sentence has, in order."""

    vocabulary: Vocabulary
    dtype: numpy.dtype
    count: int
    sentences: numpy.ndarray  # (sentences,) int64; their sum is the count


class Numbers(dict):
    """A number for each word, in order of appearance."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


def tokenize(path: Path, folder: Path, most_common: int | None, show: Callable[[int, int], None] | None) -> Tokens:
    """Write the text's tokens to `tokens.bin` in `folder`, with 2 bytes each, or 4 for a large vocabulary."""
    numbers, sentences = Numbers(), []
    raw = folder / "met.bin"
    with raw.open("wb") as file:
        for words, lengths in pieces_of(path, show):
            sentences.append(numpy.array(lengths, dtype=numpy.int64))
            numpy.fromiter(map(numbers.__getitem__, words), numpy.int32, len(words)).tofile(file)
    count = sum(int(lengths.sum()) for lengths in sentences)
    if count < 2:
        raise CorpusError(f"{path} has fewer than 2 tokens ({count}): give a longer text")
    vocabulary, new_numbers = _vocabulary(numbers, _chunks(raw), most_common)
    with (folder / "tokens.bin").open("wb") as file:
        for chunk in _chunks(raw):
            new_numbers[chunk].tofile(file)
    raw.unlink()
    return Tokens(vocabulary, new_numbers.dtype, count, numpy.concatenate(sentences))


def pieces_of(
    path: Path, show: Callable[[int, int], None] | None = None, chunk: int = CHUNK
) -> Iterator[tuple[list[str], list[int]]]:
    """Yield a text's words piece by piece, with the total length of each sentence that *ends* in the piece.

    A sentence that is longer than a chunk is yielded in parts. A word that is longer than a chunk is cut.
    """
    size, unfinished, begun = path.stat().st_size, "", 0
    with open_text(path) as file:
        while text := file.read(chunk):
            _check_is_text(path, text)
            *finished, unfinished = SENTENCE_END.split(unfinished + text)
            part, unfinished = _part_of(unfinished, chunk)
            sentences, open_words = [cut(sentence) for sentence in finished], cut(part)
            lengths = [len(words) for words in sentences]
            if lengths:
                lengths[0], begun = lengths[0] + begun, 0
            begun += len(open_words)
            yield list(chain(*sentences, open_words)), lengths
            if show:
                show(file.buffer.tell(), size)
    words = cut(unfinished)
    yield words, [begun + len(words)]


def _part_of(unfinished: str, chunk: int) -> tuple[str, str]:
    """Split an unfinished sentence into a part to yield and a remainder to keep, because the last word may continue."""
    if len(unfinished) <= chunk:
        return "", unfinished
    last_space = max(unfinished.rfind(space) for space in " \n\t")
    stop = len(unfinished[: last_space + 1].rstrip())
    if len(unfinished) - stop > chunk:
        stop = len(unfinished)
    return unfinished[:stop], unfinished[stop:]


def _check_is_text(path: Path, text: str) -> None:
    if "\0" in text:
        raise CorpusError(f"{path} does not look like text: give a UTF-8 text file")


def _vocabulary(
    numbers: Numbers, chunks: Iterator[numpy.ndarray], most_common: int | None
) -> tuple[Vocabulary, numpy.ndarray]:
    """Return the vocabulary, and an array that maps each word's first number to its number in the vocabulary."""
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


FORMAT = 1  # the version of the file format; a new number changes all keys
LONGEST = 256  # steps of a sequence: a longer sentence is cut
SAMPLE = 2**16  # bytes at the text's beginning and end that go into the key
FILES = ("tokens", "starts", "steps")
UNUSABLE = (OSError, ValueError, KeyError, TypeError)  # raised if tokens are missing or incomplete

ShowBytes = Callable[[int, int], None]  # bytes of the text read so far, and in total


@dataclass(frozen=True)
class TokenFile:
    """The tokens of a text, as one stream and as sequences, memory-mapped: only the parts that are read take memory."""

    vocabulary: Vocabulary
    tokens: Tensor  # (n,) uint16, or int32 for a large vocabulary
    starts: numpy.ndarray  # (sequences,) int64: where each starts in the stream
    lengths: numpy.ndarray  # (sequences,) uint16: how many steps each has in a batch, one fewer than its tokens

    def batch(self, indices: Iterable[int]) -> Batch:
        """Return these sequences, padded to the longest; the target of every step is the next token."""
        places = [(int(self.starts[index]), int(self.lengths[index])) for index in indices]
        chosen = [self.tokens[start : start + steps + 1].to(torch.int64) for start, steps in places]
        if not chosen:
            return next_token_batch([self.tokens[:2].to(torch.int64)]).rows([])
        return next_token_batch(chosen)


def open_tokens(path: str | Path, most_common: int | None = None, show: ShowBytes | None = None) -> TokenFile:
    """Return the tokens of a UTF-8 text file, tokenizing it first if needed. `show` receives the progress."""
    path = Path(path)
    with open_text(path):  # raises CorpusError if it is not readable text
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
    """Return the folder for tokens that cannot be stored next to their text."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course"


def sequences_of(sentences: numpy.ndarray, longest: int = LONGEST) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return (starts, steps) of the sequences to train on, from the number of tokens in each sentence.

    A sentence of n tokens has n - 1 steps. If it has more than `longest`, it becomes several sequences; each starts
    with the last target of the previous one, so no step is lost. A sentence of one token has no steps.
    """
    begins, steps = numpy.cumsum(sentences) - sentences, numpy.maximum(sentences - 1, 0)
    pieces = -(-steps // longest)
    first_piece = numpy.cumsum(pieces) - pieces
    before = (numpy.arange(pieces.sum()) - numpy.repeat(first_piece, pieces)) * longest
    return numpy.repeat(begins, pieces) + before, numpy.minimum(numpy.repeat(steps, pieces) - before, longest)


def _short(path: Path) -> str:
    """Return the beginning of a file's name, so that the name of a folder with its tokens does not get too long."""
    return path.name[:60]


def _key(path: Path, most_common: int | None) -> str:
    """Return a key from the text's size, time, beginning and end, and everything else that changes the tokens."""
    facts = path.stat()
    with path.open("rb") as file:
        beginning = file.read(SAMPLE)
        file.seek(max(0, facts.st_size - SAMPLE))
        sample = beginning + file.read(SAMPLE)
    numbers = f"{FORMAT} {LONGEST} {most_common} {facts.st_size} {facts.st_mtime_ns} "
    return hashlib.sha256(numbers.encode() + sample).hexdigest()[:16]


def _load(folder: Path) -> TokenFile:
    """Load what `_make` wrote. Raises OSError or ValueError if it is missing or incomplete."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    mapped = {}
    for name in FILES:
        kind, size = numpy.dtype(facts[name][0]), facts[name][1]
        if (folder / f"{name}.bin").stat().st_size != size * kind.itemsize:
            raise ValueError(f"{folder / name}.bin is incomplete")
        # "c" (copy-on-write) because torch would warn about read-only memory; nothing is written.
        mapped[name] = numpy.memmap(folder / f"{name}.bin", dtype=kind, mode="c", shape=(size,))
    vocabulary = Vocabulary(tuple(facts["vocabulary"]))
    return TokenFile(vocabulary, torch.from_numpy(mapped["tokens"]), mapped["starts"], mapped["steps"])


def _make(path: Path, final: Path, most_common: int | None, show: ShowBytes | None) -> None:
    """Write the files into a temporary folder, and rename it when it is complete."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{_short(path)}.", dir=final.parent))
    try:
        _write(temporary, tokenize(path, temporary, most_common, show), path)
        temporary.chmod(0o755)  # readable by everyone who can read the text
        _put_in_place(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for older in set(glob.glob(f"{glob.escape(str(final.parent / _short(path)))}.tokens-*")) - {str(final)}:
        shutil.rmtree(older, ignore_errors=True)  # ranks that still use these files have them mapped


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename the folder. If another process was faster, keep its copy unless it is damaged."""
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        try:
            _load(final)
        except UNUSABLE:
            shutil.rmtree(final)
            temporary.rename(final)


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
