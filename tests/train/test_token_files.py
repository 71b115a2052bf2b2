"""A text file as tokens on the disk: the same as in memory, made once, two bytes each, and shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
import torch

from course_lib import launch
from course_lib.core.text import Corpus, CorpusError, Streams
from course_lib.train import token_files
from course_lib.train.token_files import LONGEST, open_tokens

TEXT = (
    "Ranks meet. ΟΔΟΣ ends in a letter of its own! \n\nAlone\n \nOne two  three\nfour? five. Yes, six... seven eight\n"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def sequences(tokens) -> list[list[int]]:
    batches = [tokens.batch([index]) for index in range(len(tokens.lengths))]
    return [[*batch.inputs[:, 0].tolist(), int(batch.targets[-1, 0])] for batch in batches]


@pytest.mark.parametrize("most_common", [None, 3, 500])
@pytest.mark.parametrize("text", [TEXT * 3, "a b.\r\nc\nd e. \n\n \n  f. .\n \t\ng\nh!\n\n\n", "a\n\nb c. "])
def test_tokens_on_the_disk_are_those_in_memory(tmp_path, most_common, text):
    words = text + "A last one without an end"
    corpus = Corpus.from_text(words, most_common=most_common)
    tokens = open_tokens(write(tmp_path / "text", "\ufeff" + words), most_common)  # some editors write this mark
    assert tokens.vocabulary == corpus.vocabulary
    assert tokens.tokens.tolist() == corpus.tokens.tolist()
    assert sequences(tokens) == [sentence.tolist() for sentence in corpus.sentences]
    some, same = tokens.batch([1, 0]), corpus.batch([1, 0])
    assert torch.equal(some.inputs, same.inputs)
    assert torch.equal(some.targets, same.targets)
    assert tokens.batch([]).sequences == 0


def test_streams_of_mapped_tokens_are_those_of_a_tensor(tmp_path):
    text = write(tmp_path / "text", TEXT * 20)
    mapped, plain = (
        Streams(tokens, streams=5, window=7)
        for tokens in (open_tokens(text).tokens, Corpus.from_text(TEXT * 20).tokens)
    )
    assert len(mapped) == len(plain)
    for one, other in zip(mapped.shard(1, 2), plain.shard(1, 2), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_a_token_takes_two_bytes_and_four_where_the_vocabulary_is_large(tmp_path):
    small = open_tokens(write(tmp_path / "small", "one two three. " * 10))
    large = open_tokens(write(tmp_path / "large", " ".join(f"w{number}" for number in range(70_000))))
    assert small.tokens.element_size() == 2
    assert large.tokens.element_size() == 4
    assert large.vocabulary.decode(large.tokens[-1:]) == ["w69999"]


def test_text_without_sentence_ends_is_cut_at_the_stated_length_and_no_step_is_lost(tmp_path):
    tokens = open_tokens(write(tmp_path / "endless", "one two three four five " * 1000))
    assert tokens.lengths.max() == LONGEST
    assert tokens.lengths.sum() == len(tokens.tokens) - 1
    targets = torch.cat([tokens.batch([index]).targets[:, 0] for index in range(len(tokens.lengths))])
    assert torch.equal(targets, tokens.tokens[1:].to(torch.int64))


def test_tokens_are_made_once(tmp_path, monkeypatch):
    text = write(tmp_path / "text", TEXT)
    open_tokens(text)
    monkeypatch.delattr(token_files, "cut")
    assert len(open_tokens(text).tokens)


def test_a_text_that_has_changed_gets_other_tokens(tmp_path):
    text = write(tmp_path / "text", "one two three.")
    open_tokens(text)
    write(text, "one two seven.")
    os.utime(text, ns=(1, 1))  # of the same size, and perhaps written within the same tick of the clock
    assert "seven" in open_tokens(text).vocabulary.tokens


@pytest.mark.parametrize("name", ["tokens.npy", "starts.npy", "vocabulary.json"])
def test_damaged_tokens_get_a_sentence(tmp_path, name):
    text = write(tmp_path / "text", TEXT)
    open_tokens(text)
    (damaged,) = tmp_path.glob("text.tokens-*")
    os.truncate(damaged / name, 3)
    with pytest.raises(CorpusError, match="is damaged: remove it, and the text is tokenized again"):
        open_tokens(text)


def test_a_full_disk_gets_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numpy, "save", full)
    with pytest.raises(CorpusError, match=r"cannot be kept in .* \(No space left on device\): give a text in a folder"):
        open_tokens(write(tmp_path / "text", TEXT))
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no sentence of at least 2 tokens"),
        (b"one\n\ntwo", "no sentence of at least 2 tokens"),
        (b"text " * 10 + b"\0", "does not look like text"),
        (b"text " * 10 + b"\xff\xfe", "does not look like text"),
    ],
)
def test_what_is_no_text_gets_a_sentence_and_leaves_nothing(tmp_path, content, says):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CorpusError, match=says):
        open_tokens(tmp_path / "file")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_folder_and_a_missing_file_get_a_sentence(tmp_path):
    with pytest.raises(CorpusError, match=r"cannot be read \(Is a directory\): give the path of a UTF-8 text file"):
        open_tokens(tmp_path)
    with pytest.raises(CorpusError, match=r"notes.txt cannot be read \(No such file or directory\)"):
        open_tokens(str(tmp_path / "notes.txt"))


def test_ranks_that_make_the_same_tokens_at_once_do_not_disturb_each_other(tmp_path):
    text = write(tmp_path / "text", TEXT * 50)
    run = launch(lambda: open_tokens(text).tokens.tolist(), ranks=3)
    assert run[0] == run[1] == run[2] == Corpus.from_text(TEXT * 50).tokens.tolist()
    assert len(list(tmp_path.iterdir())) == 2
