"""Language, speech and mixed models of transformers, peft, x-transformers and diffusers' text side; the Trainer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, generator, padded, tokens, training
from torch import nn

VOCABULARY = 211
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "use_cache": False}


# ---- transformers: models on padded batches. name -> (title, model class, config class, options)

_WITH_MASK = {
    "bert": ("BERT, masked language", "BertForMaskedLM", "BertConfig", SMALL),
    "roberta": (
        "RoBERTa, masked language",
        "RobertaForMaskedLM",
        "RobertaConfig",
        {**SMALL, "max_position_embeddings": 64},
    ),
    "distilbert": (
        "DistilBERT, masked language",
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": VOCABULARY},
    ),
    "electra": ("ELECTRA, masked language", "ElectraForMaskedLM", "ElectraConfig", {**SMALL, "embedding_size": 16}),
    "albert": ("ALBERT, masked language", "AlbertForMaskedLM", "AlbertConfig", {**SMALL, "embedding_size": 16}),
    "deberta_v2": (
        "DeBERTa v2, masked language",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 64},
    ),
    "modernbert": (
        "ModernBERT, masked language",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**SMALL, "pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
    ),
    "gpt2": (
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, "use_cache": False},
    ),
    "gpt_neox": ("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", {**SMALL, "use_cache": False}),
    "opt": (
        "OPT",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
    ),
    "bloom": (
        "BLOOM",
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "use_cache": False},
    ),
    "llama": ("Llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("Mistral, sliding window", "MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 8}),
    "qwen3": ("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gemma3": ("Gemma 3", "Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 8, "sliding_window": 8}),
    "phi3": ("Phi-3", "Phi3ForCausalLM", "Phi3Config", GROUPED),
    "mamba": (
        "Mamba",
        "MambaForCausalLM",
        "MambaConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": VOCABULARY,
            "state_size": 8,
            "use_cache": False,
            "pad_token_id": 0,
        },
    ),
    "t5": (
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (
        "BART",
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
    ),
}

_ROUTED = {
    "mixtral": (
        "Mixtral, mixture of experts",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GROUPED, "num_local_experts": 4},
    ),
    "qwen3_moe": (
        "Qwen3-MoE",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
}


def _made(model: str, config: str, options: dict):
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


def _on_padded(name: str, title: str, model: str, config: str, options: dict, data_decides: str = "") -> None:
    @case("transformers", f"{title}, attention_mask", name=name, data_decides=data_decides)
    def build(compile) -> Job:
        batches = [(batch,) for batch in padded(VOCABULARY, 3, 16)]
        return training(compile, _made(model, config, options), batches, lambda m, b: m(**b).loss)


for _name, _how in _WITH_MASK.items():
    _on_padded(_name, *_how)
for _name, _how in _ROUTED.items():
    _on_padded(_name, *_how, data_decides="the experts that tokens choose decide shapes")


@case("transformers", "BERT, classification of whole sentences, no padding")
def bert_full_mask(compile) -> Job:
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=3))
    g = generator()
    batches = [
        (
            torch.randint(3, VOCABULARY, (4, 12), generator=g),
            torch.ones(4, 12, dtype=torch.long),
            torch.randint(0, 3, (4,), generator=g),
        )
        for _ in range(STEPS)
    ]
    return training(compile, model, batches, lambda m, x, mask, y: m(input_ids=x, attention_mask=mask, labels=y).loss)


@case("transformers", "Whisper")
def whisper(compile) -> Job:
    model = _made(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "max_source_positions": 30,
            "max_target_positions": 32,
            "use_cache": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    )
    g = generator()
    batches = [
        (torch.randn(2, 16, 60, generator=g), torch.randint(3, VOCABULARY, (2, 10), generator=g)) for _ in range(STEPS)
    ]
    return training(compile, model, batches, lambda m, x, y: m(input_features=x, labels=y).loss)


@case(
    "transformers",
    "wav2vec 2.0, CTC, masks drawn by NumPy",
    data_decides="NumPy draws which frames are masked: Python decides anew in each step",
)
def wav2vec2(compile) -> Job:
    model = _made(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            **dict(SMALL.items()),
            "conv_dim": [16, 16],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            "mask_time_prob": 0.2,
            "mask_time_length": 4,
        },
    )
    g = generator()
    batches = [
        (torch.randn(2, 800, generator=g), torch.randint(3, VOCABULARY, (2, 6), generator=g)) for _ in range(STEPS)
    ]
    return training(compile, model, batches, lambda m, x, y: m(input_values=x, labels=y).loss)


@case("transformers", "CLIP, contrastive")
def clip(compile) -> Job:
    import transformers

    text = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 16,
        "eos_token_id": 2,
        "bos_token_id": 0,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    g = generator()
    batches = [
        (
            torch.randint(3, VOCABULARY, (4, 12), generator=g),
            torch.randn(4, 3, 32, 32, generator=g),
            torch.ones(4, 12, dtype=torch.long),
        )
        for _ in range(STEPS)
    ]
    return training(
        compile,
        model,
        batches,
        lambda m, x, p, k: m(input_ids=x, pixel_values=p, attention_mask=k, return_loss=True).loss,
    )


# ---- transformers' Trainer

_BY_TRAINER = ("bert", "roberta", "distilbert", "gpt2", "llama", "qwen3", "gemma3", "modernbert", "t5")


class _Rows(torch.utils.data.Dataset):
    def __init__(self, count: int):
        batch = padded(VOCABULARY, count, 16, count=1)[0]
        self._rows = [{key: value[i] for key, value in batch.items()} for i in range(count)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict:
        return self._rows[i]


def _trainer(compile, model: nn.Module, **arguments) -> Job:
    import tempfile

    import transformers

    class Observer(transformers.TrainerCallback):
        def __init__(self):
            self.logs: list = []
            self.observe = None

        def on_step_end(self, args, state, control, **kwargs):
            self.observe(state.global_step)

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logs.append({k: v for k, v in logs.items() if k in ("loss", "grad_norm", "learning_rate")})

    observer = Observer()
    options = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        max_steps=STEPS,
        learning_rate=1e-3,
        dataloader_pin_memory=False,
        **arguments,
    )
    trainer = transformers.Trainer(model=model, args=options, train_dataset=_Rows(64), callbacks=[observer])
    compile.trainer(trainer)

    def run(observe) -> None:
        observer.observe = observe
        trainer.train()

    return Job(
        run,
        [model],
        [],
        lambda: {"logs": observer.logs, "optimizer": list(trainer.optimizer.optimizer.state.values())},
    )


def _by_trainer(name: str) -> None:
    title, model, config, options = _WITH_MASK[name]

    @case("transformers", f"Trainer, {title}, attention_mask", name=f"trainer_{name}")
    def build(compile) -> Job:
        return _trainer(compile, _made(model, config, options))


for _name in _BY_TRAINER:
    _by_trainer(_name)


@case("transformers", "Trainer, GPT-2, Adafactor")
def trainer_adafactor(compile) -> Job:
    return _trainer(compile, _made(*_WITH_MASK["gpt2"][1:]), optim="adafactor")


@case("transformers", "Trainer, GPT-2, accumulation, bf16, cosine")
def trainer_accumulation(compile) -> Job:
    return _trainer(
        compile,
        _made(*_WITH_MASK["gpt2"][1:]),
        gradient_accumulation_steps=3,
        bf16=True,
        lr_scheduler_type="cosine",
        warmup_steps=2,
    )


@case("transformers", "Trainer, Llama, checkpointed blocks")
def trainer_checkpointing(compile) -> Job:
    return _trainer(compile, _made(*_WITH_MASK["llama"][1:]), gradient_checkpointing=True,
                    gradient_checkpointing_kwargs={"use_reentrant": False})  # fmt: skip


# ---- peft


def _adapted(compile, config, model: str = "gpt2") -> Job:
    import peft

    base = _made(*_WITH_MASK[model][1:])
    adapted = peft.get_peft_model(base, config)
    return training(compile, adapted, [(b,) for b in padded(VOCABULARY, 3, 16)], lambda m, b: m(**b).loss)


@case("peft", "LoRA on GPT-2, attention_mask")
def lora(compile) -> Job:
    import peft

    return _adapted(
        compile,
        peft.LoraConfig(
            r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
        ),
    )


@case("peft", "DoRA on Llama, attention_mask")
def dora(compile) -> Job:
    import peft

    return _adapted(
        compile,
        peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        "llama",
    )


@case("peft", "IA3 on BERT, attention_mask")
def ia3(compile) -> Job:
    import peft

    return _adapted(
        compile,
        peft.IA3Config(
            target_modules=["key", "value", "intermediate.dense"], feedforward_modules=["intermediate.dense"]
        ),
        "bert",
    )


@case("peft", "prefix tuning of GPT-2")
def prefix_tuning(compile) -> Job:
    import peft

    return _adapted(compile, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


@case("peft", "prompt tuning of Llama")
def prompt_tuning(compile) -> Job:
    import peft

    return _adapted(compile, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "llama")


# ---- x-transformers


@case("x-transformers", "decoder, rotary positions, autoregressive wrapper")
def x_decoder(compile) -> Job:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    model = AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True)
        )
    )
    return training(compile, model, tokens(VOCABULARY, 3, 24), lambda m, x: m(x))


@case("x-transformers", "encoder, GLU feed-forward, masked mean")
def x_encoder(compile) -> Job:
    from x_transformers import Encoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=32,
        attn_layers=Encoder(dim=32, depth=2, heads=4, ff_glu=True, attn_dropout=0.1),
    )
    return training(
        compile,
        model,
        tokens(VOCABULARY, 3, 24),
        lambda m, x: F.cross_entropy(m(x, mask=x > 40).flatten(0, 1), x.flatten()),
        adamw(model),
    )
