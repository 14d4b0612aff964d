"""Policy gradient: one number at a time goes to Python and comes back as an action."""

from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)
torch.set_num_threads(1)
policy = nn.Sequential(
    nn.Linear(4, 512), nn.Dropout(p=0.6), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)
)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(3):
    state, saved, rewards = torch.randn(4), [], []
    for _ in range(30):
        m = Categorical(F.softmax(policy(state.unsqueeze(0)), dim=1))
        action = m.sample()
        saved.append(m.log_prob(action))
        state = state.roll(1) * 0.9 + (0.1 if action.item() else -0.1)
        rewards.append(1.0 if state.sum().item() > 0 else 0.0)
    returns, R = deque(), 0.0
    for r in rewards[::-1]:
        R = r + 0.99 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    optimizer.zero_grad()
    loss = torch.cat([-log_prob * R for log_prob, R in zip(saved, returns)]).sum()
    loss.backward()
    optimizer.step()
    print(f"Episode {episode}\tLoss {loss.item()}\tReturn {sum(rewards)}")
