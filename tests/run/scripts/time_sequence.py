"""LBFGS, whose step runs the forward and backward pass by itself; NumPy in and out."""

import numpy as np
import torch
from torch import nn

np.random.seed(2)
torch.manual_seed(0)
torch.set_num_threads(1)
x = np.empty((48, 60), "int64")
x[:] = np.array(range(60)) + np.random.randint(-80, 80, 48).reshape(48, 1)
data = np.sin(x / 1.0 / 20).astype("float64")


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)

    def forward(self, input):
        outputs = []
        h_t, c_t, h_t2, c_t2 = (torch.zeros(input.size(0), 51, dtype=torch.double) for _ in range(4))
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            outputs += [self.linear(h_t2)]
        return torch.cat(outputs, dim=1)


seq = Sequence().double()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=3)
input, target = torch.from_numpy(data[3:, :-1]), torch.from_numpy(data[3:, 1:])
for i in range(2):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(input), target)
        print("loss:", loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        y = seq(torch.from_numpy(data[:3, :-1])).detach().numpy()
    print(i, y.sum())
