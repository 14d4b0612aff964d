"""Under stowage.budget, what ordinary loops do beside training keeps its limit: checkpoints are saved one storage after the
other, copies count and may leave, and what came from a checkpoint is as what the program has made."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime

MIB = 1 << 20


def train(calls=3, width=256, layers=4, after=lambda model, optimizer: None, state=None):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    if state is not None:
        model.load_state_dict(state["model"], assign=True)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        optimizer.load_state_dict(state["optimizer"])
    for _ in range(calls):
        loss = model(torch.randn(64, width)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(model, optimizer)
    return model, optimizer


def states(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors(state):
    return [t for t in torch.utils._pytree.tree_leaves(state) if isinstance(t, torch.Tensor)]


def same(a, b):
    a, b = tensors(a), tensors(b)
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("form", ["file", "buffer", "legacy", "weights"])
def test_saving_keeps_the_limit(form, tmp_path):
    files, wanted = [], []

    def save(model, optimizer):
        file = io.BytesIO() if form == "buffer" else tmp_path / f"{len(files)}.pt"
        what = model.state_dict() if form == "weights" else states(model, optimizer)
        torch.save(what, file, _use_new_zipfile_serialization=form != "legacy")
        files.append(file)

    train(after=lambda *of: wanted.append(copy.deepcopy(states(*of))))
    before = _runtime.live_bytes()
    # Of 3 MiB that are saved. The old format takes a pointer to write through, so what was saved stays
    limit = before + int((4 if form == "legacy" else 2.5) * MIB)
    with stowage.budget(limit, debug=True) as b:
        model, optimizer = train(after=save)
        assert b.stats()["peak_bytes"] <= limit and (b.stats()["evictions"] > 0 or form == "legacy")
    assert same(states(model, optimizer), wanted[-1])
    for file, state in zip(files, wanted, strict=True):
        if form == "buffer":
            file.seek(0)
        got = torch.load(file, weights_only=False)
        assert same(got, state["model"] if form == "weights" else state)


def test_saved_storages_are_what_they_are_without_a_limit():
    """Views that share one, one that lies in two places, an empty one, a scalar; and two types in one are refused."""

    def saved():
        base = torch.arange(300_000, dtype=torch.float32)
        what = {"a": base, "b": base[:100_000], "again": base, "none": torch.empty(0), "one": torch.tensor(3.5)}
        torch.ones(300_000).add_(1)
        file = io.BytesIO()
        torch.save(what, file)
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            torch.save([base, base.view(torch.int32)], io.BytesIO())
        return file.getvalue()

    wanted = saved()
    with stowage.budget(_runtime.live_bytes() + 2 * MIB):
        assert saved() == wanted


def test_a_tensor_that_was_saved_may_leave_again():
    with stowage.budget(_runtime.live_bytes() + 3 * MIB) as b:
        kept = [torch.full((MIB // 4,), float(i)) for i in range(2)]
        torch.save(kept, io.BytesIO())
        others = [torch.full((MIB // 4,), float(i)) for i in range(3)]
        assert b.stats()["evictions"] > 0
        assert all((t == i).all() for made in (kept, others) for i, t in enumerate(made))


def test_pickled_tensors_stay():
    """pickle reads by itself."""
    with stowage.budget(_runtime.live_bytes() + 3 * MIB):
        t = torch.full((MIB // 4,), 2.0)
        again = pickle.loads(pickle.dumps(t))
        torch.ones(MIB // 4).add_(1)
        assert torch.equal(t, again)


COPIES = {
    "state dict": lambda model, optimizer: copy.deepcopy(model.state_dict()),
    "optimizer": lambda model, optimizer: copy.deepcopy(optimizer.state_dict()),
    "model": lambda model, optimizer: copy.deepcopy(model),
    "both": lambda model, optimizer: copy.deepcopy([states(model, optimizer), model.state_dict()]),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_count_and_leave(kind):
    def snapshots(limit=None):
        kept = []
        model, optimizer = train(after=lambda *of: kept.append(COPIES[kind](*of)), calls=4)
        return [k.state_dict() if isinstance(k, nn.Module) else k for k in kept], states(model, optimizer)

    wanted = snapshots()
    gc.collect()
    before = _runtime.live_bytes()
    limit = before + 4 * MIB
    with stowage.budget(limit, debug=True) as b:
        got = snapshots()
        counted = b.stats()["evictions"]
    assert counted > 0 and b.stats()["peak_bytes"] <= limit
    assert all(same(a, b) for a, b in zip(got[0], wanted[0], strict=True)) and same(got[1], wanted[1])
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(got)}
    assert _runtime.live_bytes() - before >= sum(sizes.values())


def test_copies_keep_who_shares_memory_with_whom():
    with stowage.budget(_runtime.live_bytes() + 4 * MIB):
        base = torch.arange(MIB // 4, dtype=torch.float32)
        first, second = copy.deepcopy([base, base[10:]])
        torch.ones(MIB // 4).add_(1)
        second[0] = -1
        assert first[10] == -1 and base[10] == 10
        clone = base.untyped_storage().clone()  # whoever has a storage may read it past any operator
        torch.ones(MIB // 4).add_(1)
        assert bytes(clone[:8]) == base[:2].numpy().tobytes()


@pytest.mark.parametrize("mmap", [False, True])
def test_a_run_from_a_checkpoint_keeps_the_limit_that_the_first_one_kept(mmap, tmp_path):
    model, optimizer = train()
    torch.save(states(model, optimizer), tmp_path / "a.pt")
    wanted = states(*train(state=copy.deepcopy(states(model, optimizer))))
    del model, optimizer
    limit = _runtime.live_bytes() + int(2.5 * MIB)
    with stowage.budget(limit, debug=True) as b:
        train()
    state = torch.load(tmp_path / "a.pt", mmap=mmap)
    with stowage.budget(limit, debug=True) as b:
        got = train(state=state)
        del state
        assert b.stats()["peak_bytes"] <= limit
    assert b.stats()["evictions"] > 0 or mmap  # those bytes are the file's
    assert same(states(*got), wanted)


def test_what_is_loaded_in_the_block_may_leave(tmp_path):
    torch.save([torch.full((MIB // 4,), float(i)) for i in range(4)], tmp_path / "a.pt")
    with stowage.budget(_runtime.live_bytes() + 5 * MIB, debug=True) as b:
        for _ in range(3):
            loaded = torch.load(tmp_path / "a.pt")
            others = [t.clone() for t in loaded]
            assert all((t == i).all() for made in (loaded, others) for i, t in enumerate(made))
        assert b.stats()["evictions"] > 0


class Exporting:
    """Its pickle has the bytes of an array, which it takes while a file is written."""

    def __init__(self, tensor, kept):
        self.tensor, self.kept = tensor, kept

    def __getstate__(self):
        self.kept.append(self.tensor.numpy())
        return self.kept[-1].tobytes()

    def __setstate__(self, state):
        self.tensor = torch.frombuffer(bytearray(state), dtype=torch.float32)


def test_an_array_that_is_made_while_a_file_is_written_is_seen():
    with stowage.budget(_runtime.live_bytes() + 3 * MIB, debug=True):
        kept = []
        tensor = torch.full((MIB // 4,), 2.0)
        torch.save([tensor, Exporting(tensor, kept)], io.BytesIO())
        torch.ones(MIB // 4).add_(1)
        tensor.add_(1)
        assert (kept[0] == 3).all()


def test_an_array_of_a_loaded_tensor_is_seen(tmp_path):
    """It was made before the block: the tensor stays where it is."""
    torch.save([torch.full((MIB // 4,), float(i)) for i in range(3)], tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt")
    array = loaded[0].numpy()
    with stowage.budget(_runtime.live_bytes() + MIB // 2, debug=True) as b:
        for t in loaded:
            t.add_(0)
        torch.ones(MIB // 4).add_(1)
        loaded[0].add_(5)
        assert b.stats()["evictions"] > 0
        assert (array == 5).all() and np.shares_memory(array, loaded[0].numpy())
    assert (array == 5).all()


def test_loaded_storages_are_as_allocated_ones(tmp_path):
    """What stowage._torch.installed takes from PyTorch."""
    torch.save(torch.ones(1000), tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt")
    assert loaded.untyped_storage().resizable() and torch.ones(3).untyped_storage().resizable()
    loaded.numpy()
    assert not loaded.untyped_storage().resizable()


def test_everything_is_as_before_after_the_block():
    """And after one that ends by an error."""
    owners = (torch, torch.Tensor, torch.UntypedStorage, torch._C.PyTorchFileWriter, torch.utils.dlpack)
    before = [dict(vars(owner)) for owner in owners]
    with stowage.budget("1GiB"):
        assert vars(torch)["save"] is not before[0]["save"]
    assert [dict(vars(owner)) for owner in owners] == before
    with pytest.raises(KeyError), stowage.budget("1GiB"):
        raise KeyError
    assert [dict(vars(owner)) for owner in owners] == before
