"""A text file of several hundred megabytes as tokens: made once, in a folder beside it, and memory-mapped by all ranks.

Words get numbers in order of appearance; once all are counted, they get their numbers in the vocabulary, as in
`Vocabulary.of`. Meanwhile a word takes 4 bytes of memory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy
import torch
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.text import SENTENCE_END, UNKNOWN, CorpusError, Vocabulary, cut, next_token_batch

LONGEST = 256  # steps of a sequence: a longer sentence becomes several, each starting with the last target before it
ARRAYS = ("tokens", "starts", "lengths")


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
        return next_token_batch([self.tokens[start : start + steps + 1].to(torch.int64) for start, steps in places])


def open_tokens(path: str | Path, most_common: int | None = None) -> TokenFile:
    """Return the tokens of a UTF-8 text file, tokenizing it first if needed."""
    path = Path(path)
    try:
        facts = path.stat()
        path.open("rb").close()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}): give the path of a UTF-8 text file") from error
    # A text that has changed has another size or time, and so another folder.
    key = hashlib.sha256(f"{LONGEST} {most_common} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = path.with_name(f"{path.name}.tokens-{key}")
    try:
        if not folder.exists():
            _make(path, folder, most_common)
        tokens, starts, lengths = (numpy.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS)
        vocabulary = Vocabulary(tuple(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))))
    except OSError as error:
        raise CorpusError(
            f"the tokens of {path} cannot be kept in {folder} ({error.strerror}): give a text in a folder that you can "
            "write to, with room for as many bytes again"
        ) from error
    except CorpusError:
        raise
    except ValueError as error:
        raise CorpusError(f"{folder} is damaged: remove it, and the text is tokenized again") from error
    return TokenFile(vocabulary, torch.from_numpy(tokens), starts, lengths)


def _make(path: Path, folder: Path, most_common: int | None) -> None:
    """Tokenize the text into a temporary folder, and rename it when it is whole."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=folder.parent))
    try:
        vocabulary, *arrays = tokenize(path, most_common)
        for name, values in zip(ARRAYS, arrays, strict=True):
            numpy.save(temporary / f"{name}.npy", values)
        (temporary / "vocabulary.json").write_text(json.dumps(vocabulary.tokens), encoding="utf-8")
        temporary.chmod(0o755)  # readable by everyone who can read the text
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another job was faster: its folder holds the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tokenize(path: Path, most_common: int | None) -> tuple[Vocabulary, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Return a text's vocabulary and the arrays of a `TokenFile`. Reads it line by line."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    met, ends, starts, lengths = array("i"), array("q", [0]), array("q"), array("H")
    try:
        with path.open(encoding="utf-8-sig") as file:  # without the byte-order mark of some editors
            for line in file:
                if "\0" in line:
                    raise ValueError("text has no zeros")
                for number, part in enumerate(SENTENCE_END.split(line)):
                    if number > 0 or not line.strip():  # an empty line ends a sentence, too
                        ends.append(len(met))
                    met.extend(map(numbers.__getitem__, cut(part)))
    except ValueError as error:
        raise CorpusError(f"{path} does not look like text: give a UTF-8 text file") from error
    ends.append(len(met))
    for begin, end in pairwise(ends):
        for start in range(begin, end - 1, LONGEST):
            starts.append(start)
            lengths.append(min(LONGEST, end - 1 - start))
    if not starts:
        raise CorpusError(f"{path} has no sentence of at least 2 tokens: give a longer text")
    in_order = numpy.asarray(met)
    counts = Counter(dict(zip(numbers, numpy.bincount(in_order).tolist(), strict=True)))
    vocabulary = Vocabulary.of(counts, most_common)
    kind, unknown = numpy.uint16 if len(vocabulary) <= 2**16 else numpy.int32, vocabulary.indices[UNKNOWN]
    new_numbers = numpy.array([vocabulary.indices.get(word, unknown) for word in numbers], dtype=kind)
    return vocabulary, new_numbers[in_order], numpy.asarray(starts), numpy.asarray(lengths)
