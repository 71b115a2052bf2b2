"""A word-level language model: an LSTM, truncated backpropagation, gradients averaged by hand, options by argparse."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn


class Dictionary:
    def __init__(self):
        self.word2idx, self.idx2word = {}, []

    def add_word(self, word):
        if word not in self.word2idx:
            self.word2idx[word] = len(self.idx2word)
            self.idx2word.append(word)
        return self.word2idx[word]


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(ntoken, ninp), nn.LSTM(ninp, nhid), nn.Linear(nhid, ntoken)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return nn.functional.log_softmax(self.decoder(output).flatten(0, 1), dim=1), hidden


def batchify(data, bsz):
    return data[: len(data) // bsz * bsz].view(bsz, -1).t().contiguous()


def main():
    parser = argparse.ArgumentParser(description="word model")
    parser.add_argument("--emsize", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1111)
    words = Dictionary()
    ids = torch.tensor(
        [words.add_word(w) for w in ("the cat sat on the mat and the dog sat on the rug . " * 40).split()]
    )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    source = batchify(ids, 4 * world_size)[:, 4 * rank : 4 * rank + 4]
    model = RNNModel(len(words.idx2word), args.emsize, args.emsize)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    loss_of_epoch = []
    for _ in range(args.epochs):
        hidden, total, count = None, 0.0, 0
        for i in range(0, len(source) - 1, 5):
            length = min(5, len(source) - 1 - i)
            hidden = None if hidden is None else tuple(state.detach() for state in hidden)
            model.zero_grad()
            output, hidden = model(source[i : i + length], hidden)
            loss = nn.functional.nll_loss(output, source[i + 1 : i + 1 + length].reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
                parameter.data.add_(parameter.grad / world_size, alpha=-args.lr)
            total, count = total + loss.item(), count + 1
        loss_of_epoch.append(total / count)
    return args.emsize, math.exp(loss_of_epoch[0]), math.exp(loss_of_epoch[-1])


ARGUMENTS = ["--emsize", "12", "--epochs", "3"]


def check(values):
    for emsize, first, last in values:
        assert emsize == 12
        assert last < first
