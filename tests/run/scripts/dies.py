"""Runs out of the machine's memory in the way that its argument names: at most 400 MiB more than it had when it began.
With a second argument it makes the change that the doctor advises first, and ends well within the same memory.

Each case is written after what people report in public threads (the numbers are issues of pytorch/pytorch)."""

import collections
import copy
import resource
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
changed = len(sys.argv) > 2


def limit(more=400 << 20):
    """Libraries are there before, and what a planned step needs beside tensors."""
    net = nn.Sequential(nn.Conv1d(4, 4, 3), nn.GRU(8, 8))
    with torch.no_grad():
        net[1](net[0](torch.randn(4, 4, 10)))
    torch.ones(64, 64).mm(torch.ones(64, 64))
    if changed:
        import stowage

        step = stowage.compile(lambda x: net[0](x).square().mean().backward(), budget="1GiB")
        for _ in range(5):
            step(torch.randn(4, 4, 10))
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def planned(step, budget):
    import stowage

    return stowage.compile(step, budget=budget) if changed else step


def layers(count, width):
    return nn.Sequential(*(module for _ in range(count) for module in (nn.Linear(width, width), nn.Tanh())))


# ---- Something holds on to what is over


def outputs_kept():
    net, kept = layers(3, 128), []
    optimizer = torch.optim.AdamW(net.parameters())
    limit()
    for _ in range(200):
        out = net(torch.randn(8192, 128))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out.mean().item() if changed else out)  # the graph goes, the output stays


def hidden_state_grows():
    """Truncated backpropagation without detach: each step keeps the graphs of all before it (2198)."""
    cell = nn.Linear(128, 128)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    hidden = torch.zeros(16384, 128)
    limit()
    for _ in range(200):
        hidden = torch.tanh(cell(hidden.detach() if changed else hidden))
        hidden.mean().backward(retain_graph=True)
        cell.weight.data.sub_(0.01)
        with torch.no_grad():
            optimizer.zero_grad()
            optimizer.step()


def features_of_a_hook():
    net, features = layers(3, 128), []
    net[2].register_forward_hook(lambda module, args, out: features.append(out.mean().item() if changed else out))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(200):
        net(torch.randn(8192, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class WithMemory(nn.Module):
    """A class attribute that outlives the step (a thread of the forum: "how PyTorch stores class variable")."""

    seen = []

    def __init__(self):
        super().__init__()
        self.net = layers(2, 128)

    def forward(self, x):
        out = self.net(x)
        self.seen.append(out.mean().item() if changed else out)
        return out


def outputs_in_a_class():
    net = WithMemory()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(200):
        net(torch.randn(8192, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights_of_each_step():
    """To average them later."""
    net, history = layers(4, 512), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(200):
        net(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(net[0].weight.norm().item() if changed else copy.deepcopy(net.state_dict()))


def gradients_of_each_step():
    net, norms = layers(4, 512), collections.defaultdict(list)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(200):
        net(torch.randn(64, 512)).square().mean().backward()
        for name, p in net.named_parameters():
            norms[name].append(p.grad.norm().item() if changed else p.grad.clone())
        optimizer.step()
        optimizer.zero_grad()


def memory_bank():
    net, bank = layers(2, 128), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for step in range(200):
        out = net(torch.randn(8192, 128))
        bank[step] = out.mean().item() if changed else out.detach()
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def replay_memory():
    """Transitions without an end."""
    policy, memory = layers(1, 1024), collections.deque(maxlen=20 if changed else None)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    limit()
    for _ in range(400):
        state = torch.randn(256, 1024)
        memory.append((state, policy(state).detach()))
        policy(memory[0][0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def losses_with_graphs():
    """Gradients of gradients: each kept loss keeps its graph (4661)."""
    net, losses = layers(3, 128), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(200):
        loss = net(torch.randn(4096, 128)).square().mean()
        for p, g in zip(net.parameters(), torch.autograd.grad(loss, [*net.parameters()], create_graph=True)):
            p.grad = g.detach()
        optimizer.step()
        losses.append(loss.item() if changed else loss)


def checkpoint_kept():
    """The dict that a model was resumed from stays beside it."""
    checkpoint = {f"{i}.weight": torch.zeros(1024, 1024) for i in range(50)}
    net = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(50))
    limit()
    net.load_state_dict(checkpoint)
    if changed:
        del checkpoint
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()


def data_set_in_memory():
    limit()
    pieces = 8 if changed else 1
    for _ in range(pieces):
        data = torch.randn(280_000 // pieces, 256)
        mean = data.mean(0)
        data = (data - mean) / data.std(0)


# ---- Evaluation with autograd's notes


def validation_without_no_grad():
    net = layers(8, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for _ in range(3):
        net(torch.randn(512, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    net.eval()
    with torch.set_grad_enabled(not changed):
        net(torch.randn(40_000, 256)).square().mean().item()


def predictions_without_no_grad():
    net, predictions = layers(6, 128).eval(), []
    limit()
    with torch.set_grad_enabled(not changed):
        for _ in range(60):
            predictions.append(net(torch.randn(4096, 128)))


def losses_of_validation_summed():
    """4420, 1840."""
    net, total = layers(6, 128).eval(), 0
    limit()
    with torch.set_grad_enabled(not changed):
        for _ in range(60):
            total = total + net(torch.randn(4096, 128)).square().mean()


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(256, 256)

    def forward(self, x, hidden):
        return self.cell(x, hidden)


def recurrent_inference():
    """1887."""
    net = Steps().eval()
    hidden = torch.zeros(2048, 256)
    limit()
    with torch.set_grad_enabled(not changed):
        for _ in range(100):
            hidden = net(hidden, hidden)


def generation_without_no_grad():
    net = layers(4, 256).eval()
    context = torch.randn(64, 1, 256)
    limit()
    with torch.set_grad_enabled(not changed):
        for _ in range(60):
            context = torch.cat([context, net(context)[:, -1:]], 1)


def outputs_of_evaluation_kept():
    net, outputs = layers(2, 512).eval(), []
    limit()
    with torch.no_grad():
        for _ in range(100):
            out = net(torch.randn(4096, 512))
            outputs.append(out.mean().item() if changed else out)


# ---- Activations


def batch_too_large():
    net = layers(8, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    for rows in (512, 512, 40_000):
        step(torch.randn(rows, 256))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return x + self.out((scores @ v).transpose(1, 2).flatten(-2))


def sequence_too_long():
    net = nn.Sequential(*(Block(64, 4) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    for length in (128, 128, 2048):
        step(torch.randn(1, length, 64))


def large_pictures():
    net = nn.Sequential(*(m for _ in range(6) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    step(torch.randn(2, 8, 800, 800))


def unrolled_recurrence():
    cell = nn.GRUCell(128, 128)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    def step(xs):
        hidden = torch.zeros(512, 128)
        for x in xs:
            hidden = cell(x, hidden)
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    step(torch.randn(200, 512, 128))


def micro_batches_summed():
    """One backward pass for all of them."""
    net = layers(6, 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(xs):
        sum(net(x).square().mean() for x in xs).backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    step(torch.randn(32, 4096, 128))


def generator_not_detached():
    generator, critic = layers(8, 256), layers(8, 256)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def step(noise):
        critic(generator(noise)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    limit()
    step = planned(step, "300MiB")
    step(torch.randn(28_000, 256))


# ---- The loss


def logits():
    head = nn.Linear(64, 30_000)
    limit()
    hidden = torch.randn(1200, 64)
    for piece in hidden.chunk(8) if changed else [hidden]:
        target = torch.zeros(len(piece), dtype=torch.long)
        F.cross_entropy(head(piece), target, reduction="sum").div(1200).backward()


def logits_in_float():
    """Made in 16 bits, and the loss of a copy in 32."""
    head = nn.Linear(64, 30_000).bfloat16()
    limit()
    hidden = torch.randn(1500, 64).bfloat16()
    for piece in hidden.chunk(8) if changed else [hidden]:
        target = torch.zeros(len(piece), dtype=torch.long)
        F.cross_entropy(head(piece).float(), target, reduction="sum").div(1500).backward()


def soft_targets():
    head = nn.Linear(64, 30_000)
    limit()
    hidden = torch.randn(1000, 64)
    for piece in hidden.chunk(8) if changed else [hidden]:
        target = F.one_hot(torch.zeros(len(piece), dtype=torch.long), 30_000).float()
        F.cross_entropy(head(piece), target, reduction="sum").div(1000).backward()


# ---- One request


def attention():
    x = nn.Parameter(torch.randn(12_000, 32))
    limit()
    for rows in x.split(len(x) // 8) if changed else [x]:
        (rows @ x.T).softmax(-1).sum().backward()


def loss_that_broadcasts():
    """(N, 1) against (N,) gives (N, N)."""
    net = nn.Linear(32, 1)
    limit()
    x, y = torch.randn(12_000, 32), torch.randn(12_000)
    pairs = zip(x.split(1500), y.split(1500)) if changed else [(x, y)]
    for x, y in pairs:
        (net(x) - y).square().mean().backward()


def distances_of_all_pairs():
    limit()
    x = torch.randn(2000, 64)
    for rows in x.split(250) if changed else [x]:
        (rows[:, None] - x[None]).square().sum(-1).argmin(1)


def wide_dtype():
    data = torch.zeros(64 << 20, dtype=torch.uint8)
    limit()
    for rows in data.split(8 << 20) if changed else [data]:
        rows.double().mean()


def pictures_stacked():
    limit()
    pictures = [torch.zeros(3, 256, 256) for _ in range(300)]
    for part in range(8) if changed else [None]:
        torch.stack(pictures if part is None else pictures[part::8]).mean()


# ---- Parameters, gradients, state, update


class Adam8bit(torch.optim.Optimizer):
    """State in 8 bits, a scale for each row."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            for name, beta, power in (("mean", 0.9, 1), ("square", 0.999, 2)):
                if name not in state:
                    state[name] = torch.zeros_like(p, dtype=torch.int8), torch.zeros(len(p), 1)
                whole, scale = state[name]
                for rows, scales, grads in zip(whole.split(4096), scale.split(4096), p.grad.split(4096)):
                    value = (rows * scales).mul_(beta).add_(grads**power, alpha=1 - beta)
                    scales.copy_(value.abs().amax(1, keepdim=True) / 127)
                    rows.copy_((value / scales.clamp_min(1e-30)).round_())
            for i in range(0, len(p), 4096):
                mean, square = (a[i : i + 4096] * s[i : i + 4096] for a, s in (state["mean"], state["square"]))
                p[i : i + 4096] -= 1e-3 * mean / (square.sqrt() + 1e-8)


def state_too_large():
    net = nn.Embedding(160_000, 256)
    optimizer = Adam8bit(net.parameters()) if changed else torch.optim.AdamW(net.parameters())
    limit()
    net(torch.arange(8)).sum().backward()
    optimizer.step()


def model_too_large():
    limit()
    dtype = torch.bfloat16 if changed else None
    nn.Sequential(*(nn.Linear(2048, 2048, dtype=dtype) for _ in range(30)))


def gradients_through_forward():
    net = layers(30, 1024)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit(360 << 20)
    for rows in (16, 2000):
        net(torch.randn(rows, 1024)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=changed)


def update_of_all_at_once():
    net = layers(26, 1024)
    optimizer = torch.optim.AdamW(net.parameters(), **({"fused": True} if changed else {"foreach": True}))
    for step in range(2):
        net(torch.randn(16, 1024)).square().mean().backward()
        if step == 1:
            limit(80 << 20)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
