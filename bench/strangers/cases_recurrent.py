"""Recurrent nets, and attention over sequences: taggers, packed sequences, loops over time, sequence to sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, case, generator, tokens, training, vectors
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class _Tagger(nn.Module):
    def __init__(self, kind: type, **options):
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 16), kind(16, 24, batch_first=True, **options)
        self.head = nn.Linear(24 * (2 if options.get("bidirectional") else 1), 50)

    def forward(self, x):
        return self.head(self.body(self.embed(x))[0])


def _tagging(compile, kind: type, **options) -> Job:
    return training(
        compile,
        _Tagger(kind, **options),
        tokens(50, 4, 12),
        lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@case("torch", "LSTM, two layers, dropout, bidirectional")
def lstm(compile) -> Job:
    return _tagging(compile, nn.LSTM, num_layers=2, dropout=0.1, bidirectional=True)


@case("torch", "GRU, two layers, dropout")
def gru(compile) -> Job:
    return _tagging(compile, nn.GRU, num_layers=2, dropout=0.1)


@case("torch", "RNN of tanh")
def rnn(compile) -> Job:
    return _tagging(compile, nn.RNN)


@case("torch", "LSTM with projections")
def lstm_projected(compile) -> Job:
    model = nn.LSTM(8, 16, proj_size=4, batch_first=True)
    return training(compile, model, vectors(4, 10, 8), lambda m, x, y: F.mse_loss(m(x)[0], y))


def _packed(compile, kind: type, fixed: bool) -> Job:
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(50, 16), kind(16, 24, batch_first=True), nn.Linear(24, 50)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.body(packed)[0], batch_first=True, total_length=x.shape[1])
            return self.head(out)

    g = generator()
    lengths = [torch.tensor([12, 9, 7, 4]) if fixed else torch.randint(4, 13, (4,), generator=g) for _ in range(STEPS)]
    batches = [(x, n) for (x,), n in zip(tokens(50, 4, 12), lengths)]
    return training(compile, Packed(), batches, lambda m, x, n: F.cross_entropy(m(x, n).flatten(0, 1), x.flatten()))


@case("torch", "packed sequences through an LSTM, the same lengths in each batch")
def packed_lstm(compile) -> Job:
    return _packed(compile, nn.LSTM, True)


@case(
    "torch",
    "packed sequences through a GRU, other lengths in each batch",
    data_decides="the lengths of the sequences decide the shapes",
)
def packed_gru(compile) -> Job:
    return _packed(compile, nn.GRU, False)


@case("torch", "word language model: the hidden state goes from batch to batch")
def word_language_model(compile) -> Job:
    model = nn.ModuleDict({"embed": nn.Embedding(50, 16), "body": nn.LSTM(16, 24), "head": nn.Linear(24, 50)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, y, hidden):
        optimizer.zero_grad()
        out, hidden = model["body"](model["embed"](x), tuple(h.detach() for h in hidden))
        value = F.cross_entropy(model["head"](out).flatten(0, 1), y.flatten())
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return value.detach(), tuple(h.detach() for h in hidden)

    step = compile(train_step)

    def run(observe) -> None:
        hidden = (torch.zeros(1, 4, 24), torch.zeros(1, 4, 24))
        for (x,) in tokens(50, 11, 4):
            value, hidden = step(x[:-1], x[1:], hidden)
            observe((value, *hidden))

    return Job(run, [model], [optimizer])


@case("torch", "time sequence prediction: two LSTMCells, a loop over time")
def lstm_cells(compile) -> Job:
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

        def forward(self, x):
            h, c, h2, c2 = (torch.zeros(x.shape[0], 12) for _ in range(4))
            out = []
            for part in x.split(1, 1):
                h, c = self.one(part, (h, c))
                h2, c2 = self.two(h, (h2, c2))
                out.append(self.head(h2))
            return torch.cat(out, 1)

    return training(compile, Sequence(), vectors(4, 20, out=20), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "sequence to sequence: GRUCell with attention and teacher forcing")
def seq2seq(compile) -> Job:
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.encoder, self.cell = (
                nn.Embedding(50, 16),
                nn.GRU(16, 16, batch_first=True),
                nn.GRUCell(32, 16),
            )
            self.score, self.head = nn.Linear(16, 16), nn.Linear(16, 50)

        def forward(self, x, y):
            memory, h = self.encoder(self.embed(x))
            h, out = h[0], []
            for t in range(y.shape[1] - 1):
                weight = torch.softmax((self.score(h)[:, None] * memory).sum(-1), -1)
                h = self.cell(torch.cat([self.embed(y[:, t]), (weight[..., None] * memory).sum(1)], -1), h)
                out.append(self.head(h))
            return torch.stack(out, 1)

    batches = [(x[:, :8], x[:, 8:]) for (x,) in tokens(50, 4, 15)]
    return training(
        compile, Translator(), batches, lambda m, x, y: F.cross_entropy(m(x, y).flatten(0, 1), y[:, 1:].flatten())
    )


@case("torch", "nn.Transformer with source padding and causal masks")
def nn_transformer(compile) -> Job:
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(50, 32), nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
            self.head = nn.Linear(32, 50)

        def forward(self, x, y):
            causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
            return self.head(
                self.body(
                    self.embed(x),
                    self.embed(y),
                    tgt_mask=causal,
                    tgt_is_causal=True,
                    src_key_padding_mask=x < 6,
                    memory_key_padding_mask=x < 6,
                )
            )

    batches = [(x[:, :9], x[:, 9:]) for (x,) in tokens(50, 3, 18)]
    return training(compile, Translator(), batches, lambda m, x, y: F.cross_entropy(m(x, y).flatten(0, 1), y.flatten()))
