"""Graph networks of torch_geometric: on one graph, and on batches of small ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, each_call, generator, training
from torch import nn

NODES, EDGES, FEATURES, CLASSES = 60, 240, 16, 5


def _one_graph():
    g = generator()
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(0, CLASSES, (NODES,), generator=g)
    edges = torch.randint(0, NODES, (2, EDGES), generator=g)
    return x, y, edges, torch.rand(NODES, generator=g) < 0.5


class _TwoLayers(nn.Module):
    """As in torch_geometric's examples: two convolutions with dropout between."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edges):
        x = F.dropout(x, 0.5, self.training)
        x = F.elu(self.first(x, edges))
        return self.second(F.dropout(x, 0.5, self.training), edges)


def _nodes(compile, model: nn.Module, masked: bool = False) -> Job:
    x, y, edges, mask = _one_graph()
    weight = mask.float() / mask.sum()

    def loss(m):
        out = m(x, edges)
        return (
            F.cross_entropy(out[mask], y[mask])
            if masked
            else (F.cross_entropy(out, y, reduction="none") * weight).sum()
        )

    return training(compile, model, [()] * STEPS, loss)


@case("torch_geometric", "GCN")
def gcn(compile) -> Job:
    from torch_geometric.nn import GCNConv

    return _nodes(compile, _TwoLayers(GCNConv(FEATURES, 16), GCNConv(16, CLASSES)))


@case("torch_geometric", "GCN, edges kept normalized", name="gcn_cached")
def gcn_cached(compile) -> Job:
    from torch_geometric.nn import GCNConv

    return _nodes(compile, _TwoLayers(GCNConv(FEATURES, 16, cached=True), GCNConv(16, CLASSES, cached=True)))


@case("torch_geometric", "GCN, loss on out[train_mask]")
def gcn_mask(compile) -> Job:
    from torch_geometric.nn import GCNConv

    return _nodes(compile, _TwoLayers(GCNConv(FEATURES, 16), GCNConv(16, CLASSES)), masked=True)


@case("torch_geometric", "GAT")
def gat(compile) -> Job:
    from torch_geometric.nn import GATConv

    return _nodes(
        compile, _TwoLayers(GATConv(FEATURES, 8, heads=4, dropout=0.5), GATConv(32, CLASSES, heads=1, dropout=0.5))
    )


@case("torch_geometric", "GraphSAGE")
def sage(compile) -> Job:
    from torch_geometric.nn import SAGEConv

    return _nodes(compile, _TwoLayers(SAGEConv(FEATURES, 16), SAGEConv(16, CLASSES)))


@case("torch_geometric", "GIN, batches of graphs, pooled")
def gin(compile) -> Job:
    from torch_geometric.nn import MLP, GINConv, global_add_pool

    class Gin(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(GINConv(MLP([i, 16, 16])) for i in (FEATURES, 16))
            self.head = MLP([16, 16, 2], norm=None, dropout=0.5)

        def forward(self, x, edges, batch, count):
            for conv in self.convs:
                x = conv(x, edges).relu()
            return self.head(global_add_pool(x, batch, size=count))

    model = Gin().train()
    optimizer = adamw(model)
    g = generator()
    batches = [
        (
            torch.randn(40, FEATURES, generator=g),
            torch.randint(0, 40, (2, 120), generator=g),
            torch.arange(40) // 10,
            torch.randint(0, 2, (4,), generator=g),
        )
        for _ in range(STEPS)
    ]

    def train_step(x, edges, batch, y):
        optimizer.zero_grad()
        value = F.cross_entropy(model(x, edges, batch, 4), y)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), batches), [model], [optimizer])
