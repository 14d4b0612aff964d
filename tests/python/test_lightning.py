"""A planned Lightning training is the one of Lightning alone: parameters, losses, gradients, logged metrics and
checkpoints, bit for bit."""

import inspect
import logging
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightnings import Net, same, train

import stowage
import stowage.lightning
from stowage.errors import UnsupportedWarning
from stowage.integrations import lightning as integration
from stowage.integrations.closures import closure_comes_first

CASES = {
    "plain": {},
    "accumulation, clipped": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    "bf16, clipped by value": {
        "precision": "bf16-mixed",
        "gradient_clip_val": 0.01,
        "gradient_clip_algorithm": "value",
    },
    "validation within an epoch": {"val_check_interval": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_bits_of_lightning_alone(tmp_path, name):
    alone, seen = train(tmp_path, **CASES[name])
    callback = stowage.lightning.Stowage(budget="16MiB")
    planned, planned_seen = train(tmp_path, callback, **CASES[name])
    assert callback.refusal == "" and callback.stats()["planned_steps"] >= 4
    assert callback.stats()["misses"] == 0
    assert seen == planned_seen and len(seen) == 18
    assert same(alone, planned)


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


def test_checkpoints_and_resume(tmp_path):
    how = {"accumulate_grad_batches": 2, "precision": "bf16-mixed", "enable_checkpointing": True}
    found = []
    for callback in (None, stowage.lightning.Stowage()):
        folder = tmp_path / str(callback is not None)
        keep = pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        train(folder, callback, callbacks=[keep], **how)
        checkpoints = [torch.load(folder / f"epoch={at}.ckpt", weights_only=False) for at in range(3)]
        resumed, seen = train(folder, callback, resume=folder / "epoch=0.ckpt", **how)
        assert callback is None or callback.stats()["planned_steps"] == 3
        found.append((resumed, seen, checkpoints))
    (alone, seen, theirs), (planned, planned_seen, ours) = found
    assert same(alone, planned) and seen == planned_seen
    for a, b in zip(ours, theirs):
        a["callbacks"] = b["callbacks"] = None  # folders
        assert equal(a, b)


class Overriding(Net):
    """Most of what a module may override around an update."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss * (1 + self.current_epoch), "half": (loss / 2).detach(), "name": "x"}

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", torch.stack([p.grad.norm() for p in self.parameters()]).norm())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + self.global_step)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs["half"].item() > 0 and outputs["name"] == "x"


class Asking(Net):
    """Asks within a step for what it has just logged: right in each call, and no two calls are alike."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("seen_so_far", self.trainer.callback_metrics["train_loss"] * 2)
        return loss


class ByHand(Net):
    """Two optimizers, stepped by the module itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss.detach()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.embed.parameters(), 0.1), torch.optim.AdamW(self.head.parameters(), 1e-2)


@pytest.mark.parametrize("module, epochs, planned_steps", [(Overriding, 3, 10), (ByHand, 3, 9), (Asking, 1, 0)])
def test_hooks_and_manual_optimization(tmp_path, module, epochs, planned_steps):
    """The first call of an epoch finds no gradients, the others do: where the module's Python reads ``p.grad``, these are two
    recordings."""
    alone, seen = train(tmp_path, module=module, max_epochs=epochs)
    callback = stowage.lightning.Stowage()
    planned, planned_seen = train(tmp_path, callback, module=module, max_epochs=epochs)
    assert callback.refusal == "" and callback.stats()["planned_steps"] >= planned_steps
    assert seen == planned_seen
    assert same(alone, planned)


def test_gradients_that_go_early_take_no_bytes(tmp_path):
    keeps, drops = stowage.lightning.Stowage(), stowage.lightning.Stowage(keep_gradients=False)
    a, _ = train(tmp_path, keeps)
    b, seen = train(tmp_path, drops)
    assert same(a, b)
    needs_bytes = [c.stats()["resident_bytes"] + c.stats()["arena_bytes"] for c in (drops, keeps)]
    assert needs_bytes[0] < needs_bytes[1]
    assert seen[0][4] == [None] * len(list(b.parameters()))


class ClosureTwice(torch.optim.SGD):
    def step(self, closure=None):
        closure()
        return super().step(closure)


def test_what_cannot_be_planned_runs_within_the_budget_and_says_why(tmp_path):
    def module():
        return Net(optimizer=ClosureTwice)

    alone, seen = train(tmp_path, module=module, max_epochs=1)
    callback = stowage.lightning.Stowage("4MiB")
    with pytest.warns(UnsupportedWarning, match=r"eagerly: ClosureTwice.step\(\) does more with its closure"):
        limited, limited_seen = train(tmp_path, callback, module=module, max_epochs=1, filter_warnings="default")
    assert same(alone, limited) and seen == limited_seen
    assert callback.step is None and callback.stats() == {} and "ClosureTwice" in callback.refusal
    assert callback._block.stats()["peak_bytes"] <= 4 << 20
    with pytest.raises(torch.OutOfMemoryError, match="stowage: a limit of 1.0 KiB"):
        train(tmp_path, stowage.lightning.Stowage("1KiB"), module=module, max_epochs=1, filter_warnings="ignore")


def test_what_else_is_refused():
    def why(module=None, **how):
        plugin = how.pop("plugin", Precision())
        strategy = how.pop("strategy", pl.strategies.SingleDeviceStrategy("cpu"))
        of_trainer = {"world_size": 1, "strategy": strategy, "precision_plugin": plugin, "optimizers": [], **how}
        return integration._why_not(SimpleNamespace(lightning_module=module or Net(), **of_trainer))

    class TakesItsBatches(Net):
        def training_step(self, dataloader_iter):
            pass

    class Hooked(torch.optim.SGD):
        pass

    hooked = Hooked([torch.nn.Parameter(torch.ones(1))])
    assert why(optimizers=[hooked]) == ""
    hooked.register_step_pre_hook(lambda *_: None)
    assert why(optimizers=[hooked]) == "Hooked has a hook that is to run before the closure of its step()"
    assert why() == "there is no optimizer"
    assert why(world_size=2).startswith("2 processes (SingleDeviceStrategy)")
    assert why(strategy=pl.strategies.DDPStrategy()) == "the strategy DDPStrategy: only one device is planned for"
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    assert why(plugin=scaled).startswith("precision='16-mixed' scales gradients")
    assert why(TakesItsBatches()) == "training_step(dataloader_iter) takes its batches by itself"
    with pytest.raises(TypeError, match="not check"):
        stowage.lightning.Stowage(check="never")


def test_where_no_two_batches_are_alike_a_warning_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(integration, "_LATE", 4)
    with pytest.warns(UnsupportedWarning, match="none of 4 batches was planned, as each does something else: the step"):
        train(tmp_path, stowage.lightning.Stowage(), module=Asking, max_epochs=1, filter_warnings="default")


class Kept(pl.loggers.CSVLogger):
    def __init__(self, folder):
        super().__init__(folder)
        self.rows = []
        self.texts = []
        self.experiment.add_text = lambda tag, text, step: self.texts.append((tag, text, step))

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))


def test_figures_go_to_the_loggers_and_to_logging(tmp_path, caplog):
    logger, callback = Kept(tmp_path), stowage.lightning.Stowage()
    with caplog.at_level(logging.INFO, "stowage"):
        module, _ = train(tmp_path, callback, logger=logger, log_every_n_steps=5)
    ours = [(step, row) for step, row in logger.rows if "stowage/misses" in row]
    assert [step for step, _ in ours] == [5, 10, 15]
    stats, last = callback.stats(), ours[-1][1]
    assert last["stowage/peak_bytes"] == stats["measured_peak_bytes"] > 0
    assert last["stowage/planned_steps"] == stats["planned_steps"] and last["stowage/stall_ms"] == 0
    assert logger.texts == [("stowage", caplog.records[-1].getMessage().split(": ", 1)[1], 15)]
    assert "12 of 15 updates planned, arena" in logger.texts[0][1]
    loop = module.trainer.fit_loop.epoch_loop  # is as it was
    assert "run" not in vars(loop.automatic_optimization)
    assert "optimizer_step" not in vars(module.trainer.precision_plugin)
    assert not {"log", "reset", "metrics"} & set(vars(loop._results))


def test_the_package_of_the_older_name(tmp_path):
    import pytorch_lightning

    class Small(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, batch_idx):
            loss = torch.nn.functional.cross_entropy(self.net(*batch[:2]), batch[2])
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    assert integration._base_classes() == (pl.Callback, pytorch_lightning.Callback)
    how = {"package": pytorch_lightning, "module": Small, "max_epochs": 2}
    alone, seen = train(tmp_path, **how)
    callback = stowage.lightning.Stowage("16MiB")
    planned, planned_seen = train(tmp_path, callback, **how)
    assert callback.refusal == "" and callback.stats()["planned_steps"] == 7
    assert same(alone, planned) and seen == planned_seen


# ---- What is Lightning's own: these fail when it changes


def test_private_interfaces():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    assert parameters(_AutomaticOptimization.run) == ["self", "optimizer", "batch_idx", "kwargs"]
    assert parameters(_ManualOptimization.run) == ["self", "kwargs"]
    assert parameters(Precision.optimizer_step) == ["self", "optimizer", "model", "closure", "kwargs"]
    assert parameters(Precision._wrap_closure) == ["self", "model", "optimizer", "closure"]
    assert {"batch", "batch_size"} <= set(vars(_ResultCollection(True)))
    assert {"log", "reset", "metrics"} <= set(vars(_ResultCollection))
    source = inspect.getsource(Precision.optimizer_step)  # what stands in for it does the same in another order
    assert "closure = partial(self._wrap_closure, model, optimizer, closure)" in source
    assert "return optimizer.step(closure=closure, **kwargs)" in source
    assert "super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)" in inspect.getsource(
        MixedPrecision.optimizer_step
    )


def test_which_optimizers_call_their_closure_first():
    classes = [c for c in vars(torch.optim).values() if inspect.isclass(c) and issubclass(c, torch.optim.Optimizer)]
    others = {c.__name__ for c in classes if not closure_comes_first(inspect.unwrap(c.step))}
    assert others == {"LBFGS", "Optimizer"} and len(classes) > 10

    def later(self, closure=None):
        self.count += 1
        if closure is not None:
            closure()

    def uses_the_loss(self, closure=None):
        loss = None
        if closure is not None:
            loss = closure()
        self.scale = loss
        return loss

    def without(self):
        self.count += 1

    assert not closure_comes_first(later) and not closure_comes_first(uses_the_loss)
    assert closure_comes_first(without)
