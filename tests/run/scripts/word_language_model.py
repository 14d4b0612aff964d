"""A recurrent language model: the hidden state goes from batch to batch, and the update is made by hand."""

import torch
from torch import nn

torch.manual_seed(1111)
torch.set_num_threads(1)
tokens, width = 300, 128
encoder, rnn, decoder = nn.Embedding(tokens, width), nn.LSTM(width, width, 2, dropout=0.2), nn.Linear(width, tokens)
model = nn.ModuleList([encoder, rnn, decoder])
criterion = nn.NLLLoss()
data = torch.randint(0, tokens, (161, 20))
hidden = (torch.zeros(2, 20, width), torch.zeros(2, 20, width))
lr, total = 5.0, 0.0
for batch, i in enumerate(range(0, 160, 32)):
    model.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = rnn(encoder(data[i : i + 32]), hidden)
    loss = criterion(torch.log_softmax(decoder(output).view(-1, tokens), 1), data[i + 1 : i + 33].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    total += loss.item()
    print(f"| {batch:3d} batches | lr {lr:02.2f} | loss {loss.item()}")
