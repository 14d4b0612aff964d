"""Random programs of list ops (torch._foreach_*), on lists that mix tensors of a few bytes with large ones, for the tests of
the eager budget.

    seed ──► lists ──► ops in place and not, and tensors beside them that need the room ──► what all hold in the end
"""

from __future__ import annotations

import random

import torch


def values(seed: int, device: str = "cpu") -> list[torch.Tensor]:
    """What the program's tensors hold in the end, on the CPU."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    count = draw.randint(2, 6)
    sizes = [draw.choice([1, 7, 200, 300, 20_000, 60_000]) for _ in range(count)]
    sizes[draw.randrange(count)] = 50_000
    with torch.no_grad():
        lists = [[torch.rand(n, device=device) + 0.5 for n in sizes] for _ in range(3)]
        for _ in range(draw.randint(3, 12)):
            a, b, c = (draw.choice(lists) for _ in range(3))
            factors = [draw.uniform(0.5, 1.5) for _ in sizes]
            op = draw.randrange(9)
            if op == 0:
                torch._foreach_mul_(a, draw.uniform(0.5, 1.5))
            elif op == 1:
                torch._foreach_add_(a, b, alpha=0.5)
            elif op == 2:
                torch._foreach_addcmul_(a, b, c, value=0.1)
            elif op == 3:
                torch._foreach_lerp_(a, b, 0.3)
            elif op == 4:
                torch._foreach_mul_(a, factors)
            elif op == 5:
                lists[draw.randrange(len(lists))] = list(torch._foreach_sqrt(torch._foreach_abs(a)))
            elif op == 6:
                torch._foreach_copy_(a, b)
            elif op == 7:
                lists[draw.randrange(len(lists))] = list(torch._foreach_add(a, b))
            else:
                lists[draw.randrange(len(lists))] = [torch.rand(n, device=device) for n in sizes]
            if draw.random() < 0.5:  # needs the room
                beside = torch.ones(draw.choice([20_000, 120_000]), device=device)
                lists[0][0].add_(beside[:1])
                del beside
            if draw.random() < 0.3:  # one of a list moves on by itself
                draw.choice(draw.choice(lists)).mul_(0.9)
    return [tensor.cpu() for tensors in lists for tensor in tensors]
