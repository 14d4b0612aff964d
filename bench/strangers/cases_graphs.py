"""Graph networks: on one graph, and on batches of small ones; of torch_geometric, and with a sparse adjacency."""

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


# ---- With the adjacency as a sparse tensor


def _adjacency(edges: torch.Tensor, nodes: int) -> torch.Tensor:
    """Normalized, with loops: D^-1/2 (A + I) D^-1/2, in COO."""
    there = torch.zeros(nodes, nodes)
    there[edges[0], edges[1]] = there[edges[1], edges[0]] = 1.0
    there.fill_diagonal_(1.0)
    root = there.sum(1).rsqrt()
    return (root[:, None] * there * root).to_sparse().coalesce()


class _SparseGCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x, adjacency):
        h = F.relu(torch.spmm(adjacency, self.first(x)))
        return F.log_softmax(torch.spmm(adjacency, self.second(F.dropout(h, 0.5, self.training))), 1)


@case("torch", "GCN by torch.spmm, the adjacency an argument")
def gcn_sparse(compile) -> Job:
    x, y, edges, _ = _one_graph()
    return training(
        compile, _SparseGCN(), [(x, _adjacency(edges, NODES), y)] * STEPS, lambda m, x, a, y: F.nll_loss(m(x, a), y)
    )


class _LightGCN(nn.Module):
    def __init__(self, adjacency: torch.Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NODES, FEATURES)
        self.register_buffer("adjacency", adjacency)

    def forward(self, users, liked, other):
        layers = [self.embedding.weight]
        for _ in range(3):
            layers.append(torch.sparse.mm(self.adjacency, layers[-1]))
        x = torch.stack(layers).mean(0)
        return F.softplus((x[users] * x[other]).sum(1) - (x[users] * x[liked]).sum(1)).mean()


@case("torch", "LightGCN: torch.sparse.mm with a CSR buffer, pairs sampled in the step")
def light_gcn(compile) -> Job:
    _, _, edges, _ = _one_graph()
    model = _LightGCN(_adjacency(edges, NODES).to_sparse_csr())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train_step():
        pairs = edges[:, torch.randint(0, EDGES, (32,))]
        loss = model(pairs[0], pairs[1], torch.randint(0, NODES, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), [()] * STEPS), [model], [optimizer])


@case("torch_geometric", "GraphSAGE over a CSR adjacency")
def sage_csr(compile) -> Job:
    from torch_geometric.nn import SAGEConv

    x, y, edges, _ = _one_graph()
    adjacency = _adjacency(edges, NODES).to_sparse_csr()
    model = _TwoLayers(SAGEConv(FEATURES, 16), SAGEConv(16, CLASSES))
    return training(compile, model, [()] * STEPS, lambda m: F.cross_entropy(m(x, adjacency), y))
