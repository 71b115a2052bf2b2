"""A text becomes numbers and comes back; streams go on without a gap."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.core.text import Corpus, CorpusError, Streams, Vocabulary

TEXT = "The cat sat. The dog, too! Did pi = 3.14 sit?\n\nA title\n\nNo"
quickly = settings(deadline=None, max_examples=50)


def spoken(corpus: Corpus) -> list[str]:
    """The sentences, in words."""
    return [" ".join(corpus.vocabulary.decode(sentence)) for sentence in corpus.sentences]


def test_words_are_lower_cased_and_punctuation_stands_alone():
    corpus = Corpus.from_text("The cat's hat.")
    assert corpus.vocabulary.decode(corpus.tokens) == ["the", "cat", "'", "s", "hat", "."]


def test_characters_come_back_as_they_were():
    corpus = Corpus.from_text(TEXT, unit="character")
    assert "".join(corpus.vocabulary.decode(corpus.tokens)) == TEXT


def test_sentences_end_at_full_stops_and_blank_lines_and_have_two_tokens_or_more():
    assert spoken(Corpus.from_text(TEXT)) == [
        "the cat sat .",
        "the dog , too !",
        "did pi = 3 . 14 sit ?",
        "a title",
    ]


def test_frequent_tokens_have_small_numbers_after_padding_and_unknown():
    vocabulary = Vocabulary.of(["b", "a", "c", "b", "a", "b"])
    assert vocabulary.tokens == ("<pad>", "<unk>", "b", "a", "c")
    assert vocabulary.indices["<pad>"] == 0
    assert len(vocabulary) == 5
    assert vocabulary.encode(["a", "zebra", "b"]).tolist() == [3, 1, 2]
    assert vocabulary.decode(torch.tensor([4, 1])) == ["c", "<unk>"]


def test_only_the_most_common_tokens_are_kept():
    corpus = Corpus.from_text("b a c b a b", most_common=2)
    assert corpus.vocabulary.tokens == ("<pad>", "<unk>", "b", "a")
    assert corpus.tokens.tolist() == [2, 3, 1, 2, 3, 2]


@pytest.mark.parametrize("unit", ["word", "character"])
def test_python_s_own_documentation_is_a_corpus(unit: str):
    corpus = Corpus.from_python_docs(unit, limit=20_000)
    assert corpus.tokens.dtype == torch.int64
    assert len(corpus.tokens) > 1000
    assert len(corpus.sentences) > 50
    assert len(set(corpus.lengths.tolist())) > 10
    assert int(corpus.tokens.min()) >= 2
    assert int(corpus.tokens.max()) < len(corpus.vocabulary)


def test_the_documentation_is_read_in_sorted_order_without_the_rules_under_titles(monkeypatch):
    topics = {"b": "Second\n******\n\n+---+---+\n| x | y |\n", "a": 'First\n*****\n\nA "**" b -- c.\n'}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", SimpleNamespace(topics=topics))
    corpus = Corpus.from_python_docs()
    assert "".join(corpus.vocabulary.decode(corpus.tokens)) == 'firsta"**"b--c.second|x|y|'


def test_the_limit_counts_characters():
    assert len(Corpus.from_python_docs("character", limit=300).tokens) == 300


def test_the_next_token_is_wanted_at_every_step():
    corpus = Corpus.from_text(TEXT)
    batch = corpus.batch([1, 0])
    assert batch.lengths.tolist() == corpus.lengths[[1, 0]].tolist() == [4, 3]
    assert torch.equal(batch.mask, batch.valid)
    assert corpus.vocabulary.decode(batch.inputs[:, 1]) == ["the", "cat", "sat", "<pad>"]
    assert corpus.vocabulary.decode(batch.targets[:, 1]) == ["cat", "sat", ".", "<pad>"]


def test_a_rank_with_nothing_to_do_gets_a_batch_of_no_sequences():
    batch = Corpus.from_text(TEXT).batch([])
    assert batch.inputs.shape == (1, 0)
    assert batch.count == 0


def test_a_python_without_its_documentation_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(CorpusError, match=r"give your own text to Corpus.from_text"):
        Corpus.from_python_docs()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Corpus.from_text("word"), r"fewer than 2 tokens \(1\): give a longer text"),
        (lambda: Corpus.from_text(TEXT, unit="letter"), "unit='letter': choose 'word' or 'character'"),
        (lambda: Corpus.from_text(TEXT, most_common=0), "most_common=0: a vocabulary keeps"),
        (lambda: Streams(torch.arange(12), streams=3, window=4), "give at least 13, fewer"),
        (lambda: Streams(torch.arange(9), streams=0), "streams=0: give at least 1"),
        (lambda: Streams(torch.arange(9), streams=1, window=0), "window=0: give at least 1"),
        (lambda: Streams(torch.arange(9), 2, 2).shard(2, 2), "give a rank from 0 to 1"),
    ],
)
def test_bad_input_gets_a_sentence(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make()


@st.composite
def streams(draw) -> tuple[int, Streams]:
    """A text in which every token is its own place, as streams; with the length of the text."""
    number, window, windows = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    size = number * window * windows + 1 + draw(st.integers(0, number * window - 1))
    return size, Streams(torch.arange(size), number, window)


@quickly
@given(streams())
def test_streams_read_the_text_once_without_a_gap(made: tuple[int, Streams]):
    size, text = made
    batches = list(text)
    read = torch.cat([batch.inputs for batch in batches]).t().flatten()
    assert torch.equal(read, torch.arange(len(read)))
    assert size - 1 - len(read) < text.streams * text.window
    assert all(torch.equal(batch.targets, batch.inputs + 1) for batch in batches)
    assert all(batch.count == text.window * text.streams for batch in batches)


@quickly
@given(streams())
def test_a_window_begins_where_the_one_before_ended(made: tuple[int, Streams]):
    _, text = made
    for index in range(1, len(text)):
        assert torch.equal(text[index].inputs[0], text[index - 1].targets[-1])
        assert text[index].inputs.is_contiguous()


@quickly
@given(streams(), st.integers(1, 8))
def test_each_rank_owns_its_streams(made: tuple[int, Streams], ranks: int):
    _, text = made
    shares = [text.shard(rank, ranks) for rank in range(ranks)]
    assert sum(share.streams for share in shares) == text.streams
    for rank, share in enumerate(shares):
        assert len(share) == len(text)
        for mine, whole in zip(share, text, strict=True):
            assert torch.equal(mine.inputs, whole.shard(rank, ranks).inputs)
            assert torch.equal(mine.targets, whole.shard(rank, ranks).targets)


def test_a_window_that_does_not_exist_is_an_error():
    text = Streams(torch.arange(9), 2, 2)
    assert len(text) == 2
    with pytest.raises(IndexError, match="give an index from 0 to 1"):
        text[2]
