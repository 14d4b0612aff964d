"""Each architecture that the installed transformers know, made small: a few training steps eagerly and compiled, bit
against bit.

    configuration, default ──► shrunk ──► model of the first class that takes it (causal, masked, sequence to sequence,
                                           images, speech, plain) ──► seven steps of AdamW: eager, eager, compiled

Nothing is written for one of them: sizes go by the names of the configuration's fields, and the loss is the model's own,
or the mean square of what it returns. What cannot be trained so is not counted, with its reason; nor what eager itself
does not repeat. Each runs in a process of its own."""

from __future__ import annotations

import argparse
import collections
import copy
import fnmatch
import gc
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

STEPS = 7
MOST_PARAMETERS = 40_000_000
MOST_BYTES = 6 << 30
MOST_S = 240
CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSequenceClassification",
    "AutoModelForSemanticSegmentation",
    "AutoModelForDepthEstimation",
    "AutoModel",
)
WITH_LABELS = CLASSES[:3]
WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS = 32, 4, 2, 120, 16
_SIZES = {
    WIDTH: "hidden_size d_model n_embd dim embed_dim embedding_size",
    48: "intermediate_size encoder_ffn_dim decoder_ffn_dim d_ff ffn_dim",
    24: "moe_intermediate_size shared_expert_intermediate_size",
    LAYERS: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers num_key_value_heads num_experts_per_tok eos_token_id",
    HEADS: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "num_local_experts num_experts n_routed_experts",
    8: "d_kv head_dim state_size patch_size",
    64: "max_position_embeddings n_positions",
    VOCABULARY: "vocab_size",
    0: "pad_token_id",
    1: "bos_token_id decoder_start_token_id",
}
SMALL = {name: size for size, names in _SIZES.items() for name in names.split()} | {"image_size": 32}


class NotCounted(Exception):
    pass


def names() -> list[str]:
    from transformers import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING)


def shrunk(config: Any) -> Any:
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_diff_dict"):  # a part's own configuration
            shrunk(value)
        elif name in SMALL and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, name, SMALL[name])
        elif name == "layer_types" and isinstance(value, list) and len(value) > LAYERS:
            config.layer_types = [value[0], value[-1]]
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    return config


def model_of(name: str) -> tuple[Any, str]:
    """(the model, its class among CLASSES)."""
    import torch
    import transformers

    why = ""
    for kind in CLASSES:
        make = getattr(transformers, kind).from_config
        try:
            config = shrunk(transformers.CONFIG_MAPPING[name]())
            with torch.device("meta"):
                count = sum(p.numel() for p in make(copy.deepcopy(config)).parameters())
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if count > MOST_PARAMETERS:
            raise NotCounted("too large after shrinking")
        torch.manual_seed(0)
        return make(config), kind
    raise NotCounted(f"no class takes it: {why}")


def batch(model: Any, kind: str, seed: int) -> dict:
    import torch

    generator = torch.Generator().manual_seed(seed)
    config, main = model.config, model.main_input_name
    if main == "pixel_values":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else 32
        return {main: torch.randn(2, getattr(config, "num_channels", 3) or 3, size, size, generator=generator)}
    if main == "input_values":
        return {main: torch.randn(2, 2000, generator=generator)}
    if main == "input_features":
        return {main: torch.randn(2, getattr(config, "num_mel_bins", 80), 64, generator=generator)}
    ids = torch.randint(3, min(getattr(config, "vocab_size", None) or 100, 100), (2, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, TOKENS - TOKENS // 4 :] = 0
    return {"input_ids": ids, "attention_mask": mask, **({"labels": ids} if kind in WITH_LABELS else {})}


def loss_of(outputs: Any) -> Any:
    import torch

    if getattr(outputs, "loss", None) is not None:
        return outputs.loss
    tensors = [t for t in outputs.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise NotCounted("nothing that it returns requires grad")
    return sum(t.float().square().mean() for t in tensors[:2])


def trained(model: Any, kind: str, state: dict, through: Callable[[Callable], Callable]) -> tuple[list, Any]:
    """All that the steps leave, and what ``through`` has made of the step."""
    import torch

    model.load_state_dict(state)
    model.zero_grad(set_to_none=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(inputs: dict) -> Any:
        loss = loss_of(model(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = through(train_step)
    torch.manual_seed(5)
    losses = [step(batch(model, kind, i)).clone() for i in range(STEPS)]
    return [*losses, *(t.detach().clone() for t in model.state_dict().values())], step


def same(a: list, b: list) -> bool:
    import torch

    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) and torch.equal(x.isnan(), y.isnan()) for x, y in zip(a, b))


def tried(name: str) -> dict:
    import stowage

    try:
        model, kind = model_of(name)
        model.train()
        state = copy.deepcopy(model.state_dict())
        expected, _ = trained(model, kind, state, lambda step: step)
        again, _ = trained(model, kind, state, lambda step: step)
    except NotCounted as why:
        return {"outcome": "not counted", "reason": str(why)}
    except Exception as error:
        return {"outcome": "not counted", "reason": f"eager raises {type(error).__name__}: {error}"}
    if not same(expected, again):
        return {"outcome": "not counted", "reason": "eager does not repeat its own numbers"}
    gc.collect()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            got, step = trained(model, kind, state, stowage.compile)
    except Exception as error:
        return {"outcome": "raises", "class": kind, "reason": f"{type(error).__name__}: {error}"}
    planned = step.stats()["planned_steps"]
    reasons = [str(w.message) for w in said if "stowage" in type(w.message).__module__]
    outcome = "wrong" if not same(expected, got) else "planned" if planned else "refused"
    return {"outcome": outcome, "class": kind, "planned_steps": planned, "reason": "" if planned else " ".join(reasons)}


def forked(name: str) -> dict:
    """tried(), in a child."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        signal.alarm(MOST_S)
        os.write(writes, json.dumps(tried(name)).encode()[: 1 << 16])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = json.loads(text) if text else {"outcome": "crash", "reason": f"ended with {code}"}
    found["reason"] = found["reason"].splitlines()[0][:160] if found["reason"] else ""
    return {"name": name, **found}


def run(patterns: tuple[str, ...], say: Callable[[str], None]) -> Iterator[dict]:
    chosen = [name for name in names() if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    for i, name in enumerate(chosen):
        found = forked(name)
        say(f"[{i + 1}/{len(chosen)}] {name}: {found['outcome']} {found['reason']}")
        yield found


def table(results: list[dict]) -> str:
    from bench import common

    kinds = sorted({r.get("class", "") for r in results if r["outcome"] != "not counted"})
    rows = []
    for kind in [*kinds, None]:
        of_kind = [r for r in results if r["outcome"] != "not counted" and kind in (None, r.get("class", ""))]
        count = collections.Counter(r["outcome"] for r in of_kind)
        label = "all" if kind is None else kind.removeprefix("AutoModelFor") or "crashed"
        rows.append([label, len(of_kind), *(count[o] for o in ("planned", "refused", "wrong", "raises", "crash"))])
    header = ["trained as", "architectures", "planned", "refused", "other bits", "raises", "crash"]
    left = [r for r in results if r["outcome"] == "not counted"]
    text = common.markdown(header, rows) + f"\n\n{len(left)} more are not counted: {_why(left)}."
    others = [r for r in results if r["outcome"] not in ("planned", "not counted")]
    return text + "".join(f"\n- {r['name']}: {r['outcome']}, {r['reason']}" for r in others)


def _why(left: list[dict]) -> str:
    kinds = collections.Counter(r["reason"].split(":")[0] for r in left)
    return ", ".join(f"{why} ({count})" for why, count in kinds.most_common(6)) + (", ..." if len(kinds) > 6 else "")


def main() -> None:
    from bench import common

    split = lambda text: tuple(text.split(","))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev bench architectures")
    parser.add_argument("--names", type=split, default=("*",), help="names or patterns, by commas")
    parser.add_argument("-o", "--output", help='results as JSON (default bench/results/architectures.json; "-": none)')
    options = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    warnings.simplefilter("ignore")
    import torch
    import transformers

    import stowage  # noqa: F401  before the children, so that they need not

    assert transformers.models.auto.modeling_auto
    torch.set_num_threads(1)
    start = time.perf_counter()
    results = list(run(options.names, common.say))
    seconds = time.perf_counter() - start
    common.publish("architectures", {"seconds": seconds, "results": results}, table(results), options.output)
    sys.exit(any(r["outcome"] in ("wrong", "raises", "crash") for r in results))


if __name__ == "__main__":
    main()
