"""Vision: timm, torchvision, transformers, segmentation-models-pytorch, diffusers, vit-pytorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, case, generator, of_images, pictures, training

# ---- timm: name -> (title, model, pixels, options)

_TIMM = {
    "timm_resnet": ("ResNet-10", "resnet10t", 32, {}),
    "timm_mobilenetv3": ("MobileNetV3", "mobilenetv3_small_050", 32, {}),
    "timm_efficientnet": (
        "EfficientNet-B0, drop path",
        "efficientnet_b0",
        32,
        {"drop_rate": 0.2, "drop_path_rate": 0.1},
    ),
    "timm_convnext": ("ConvNeXt", "convnext_atto", 32, {"drop_path_rate": 0.1}),
    "timm_swin": (
        "Swin",
        "swin_tiny_patch4_window7_224",
        56,
        {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 7},
    ),
    "timm_vit": (
        "ViT, drop path",
        "vit_tiny_patch16_224",
        32,
        {"img_size": 32, "patch_size": 8, "depth": 3, "drop_path_rate": 0.1},
    ),
    "timm_deit": (
        "DeiT, distilled",
        "deit_tiny_distilled_patch16_224",
        32,
        {"img_size": 32, "patch_size": 8, "depth": 2},
    ),
    "timm_regnet": ("RegNet", "regnetx_002", 32, {}),
    "timm_ghostnet": ("GhostNet", "ghostnet_050", 32, {}),
    "timm_nfnet": ("NF-RegNet, standardized weights", "nf_regnet_b0", 32, {}),
    "timm_edgenext": ("EdgeNeXt", "edgenext_xx_small", 32, {}),
    "timm_levit": ("LeViT", "levit_128s", 224, {}),
    "timm_xcit": ("XCiT", "xcit_nano_12_p16_224", 32, {"img_size": 32, "depth": 2}),
}


def _of_timm(name: str, title: str, model: str, size: int, options: dict) -> None:
    @case("timm", title, name=name)
    def build(compile) -> Job:
        import timm

        return of_images(
            compile, timm.create_model(model, num_classes=10, **options), size=size, batch=4 if size < 200 else 2
        )


for _name, _how in _TIMM.items():
    _of_timm(_name, *_how)


@case("timm", "MLP-Mixer")
def timm_mixer(compile) -> Job:
    from timm.models.mlp_mixer import MlpMixer

    return of_images(
        compile, MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=48, drop_path_rate=0.1)
    )


@case("timm", "ResNet, Mixup, label smoothing and ModelEmaV3")
def timm_recipe(compile) -> Job:
    import timm.optim
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import ModelEmaV3

    model = timm.create_model("resnet10t", num_classes=10).train()
    average = ModelEmaV3(model, decay=0.9)
    mix = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
    loss, optimizer = SoftTargetCrossEntropy(), timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for i, (x, y) in enumerate(pictures(4, 3, 32, 32)):
            value = step(*mix(x, y))
            average.update(model, step=i)
            observe(value)

    return Job(run, [model, average.module], [optimizer])


# ---- torchvision

_TORCHVISION = {
    "tv_resnet": ("ResNet-18", "resnet18", 32, {}),
    "tv_mobilenet_v2": ("MobileNetV2", "mobilenet_v2", 32, {"width_mult": 0.35}),
    "tv_mobilenet_v3": ("MobileNetV3", "mobilenet_v3_small", 32, {"width_mult": 0.5}),
    "tv_shufflenet": ("ShuffleNet v2", "shufflenet_v2_x0_5", 64, {}),
    "tv_squeezenet": ("SqueezeNet", "squeezenet1_1", 64, {}),
    "tv_mnasnet": ("MNASNet", "mnasnet0_5", 32, {}),
}


def _of_torchvision(name: str, title: str, model: str, size: int, options: dict) -> None:
    @case("torchvision", title, name=name)
    def build(compile) -> Job:
        import torchvision

        return of_images(compile, getattr(torchvision.models, model)(num_classes=10, **options), size=size)


for _name, _how in _TORCHVISION.items():
    _of_torchvision(_name, *_how)


@case("torchvision", "Swin v2")
def tv_swin_v2(compile) -> Job:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    model = SwinTransformer(
        [4, 4],
        16,
        [1, 2],
        [2, 4],
        [4, 4],
        stochastic_depth_prob=0.1,
        num_classes=10,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    return of_images(compile, model)


@case("torchvision", "DenseNet, checkpointed by memory_efficient")
def tv_densenet(compile) -> Job:
    from torchvision.models import DenseNet

    return of_images(compile, DenseNet(8, (3, 3), 16, num_classes=10, memory_efficient=True))


@case("torchvision", "GoogLeNet with its two auxiliary heads")
def tv_googlenet(compile) -> Job:
    import torchvision

    model = torchvision.models.googlenet(num_classes=10, aux_logits=True, init_weights=False)

    def loss(m, x, y):
        out = m(x)
        return F.cross_entropy(out.logits, y) + 0.3 * (
            F.cross_entropy(out.aux_logits1, y) + F.cross_entropy(out.aux_logits2, y)
        )

    return training(compile, model, pictures(2, 3, 64, 64), loss)


def _scenes(count: int, size: int, classes: int) -> list[tuple]:
    g = generator()
    return [
        (torch.randn(count, 3, size, size, generator=g), torch.randint(0, classes, (count, size, size), generator=g))
        for _ in range(STEPS)
    ]


@case("torchvision", "LR-ASPP segmentation, as in its reference script")
def tv_lraspp(compile) -> Job:
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    return training(
        compile, model, _scenes(2, 64, 5), lambda m, x, y: F.cross_entropy(m(x)["out"], y, ignore_index=255)
    )


@case("torchvision", "FCN segmentation, auxiliary head")
def tv_fcn(compile) -> Job:
    import torchvision

    backbone = torchvision.models._utils.IntermediateLayerGetter(
        torchvision.models.resnet18(), {"layer4": "out", "layer3": "aux"}
    )
    heads = torchvision.models.segmentation.fcn
    model = heads.FCN(backbone, heads.FCNHead(512, 5), heads.FCNHead(256, 5))
    return training(
        compile,
        model,
        _scenes(2, 32, 5),
        lambda m, x, y: (lambda o: F.cross_entropy(o["out"], y) + 0.5 * F.cross_entropy(o["aux"], y))(m(x)),
    )


@case("torchvision", "RetinaNet detection", data_decides="boxes are matched to anchors by boolean masks")
def tv_retinanet(compile) -> Job:
    import torchvision

    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64
    )
    g = generator()

    def one():
        corner = torch.rand(3, 2, generator=g) * 30
        boxes = torch.cat([corner, corner + 8 + torch.rand(3, 2, generator=g) * 20], 1)
        return [torch.rand(3, 64, 64, generator=g)], [
            {"boxes": boxes, "labels": torch.randint(1, 4, (3,), generator=g)}
        ]

    return training(
        compile,
        model,
        [one() for _ in range(STEPS)],
        lambda m, x, t: sum(m(x, t).values()),
        torch.optim.SGD(model.parameters(), 1e-3),
    )


@case("torchvision", "R(2+1)D video")
def tv_video(compile) -> Job:
    import torchvision

    model = torchvision.models.video.mc3_18(num_classes=5)
    g = generator()
    batches = [
        (torch.randn(2, 3, 4, 24, 24, generator=g), torch.randint(0, 5, (2,), generator=g)) for _ in range(STEPS)
    ]
    return training(compile, model, batches, lambda m, x, y: F.cross_entropy(m(x), y))


# ---- transformers

_WIDTH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def _of_transformers(name: str, title: str, model: str, config: str, options: dict, size: int = 32) -> None:
    @case("transformers", title, name=name)
    def build(compile) -> Job:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(num_labels=10, **options))
        return training(compile, made, pictures(4, 3, size, size), lambda m, x, y: m(pixel_values=x, labels=y).loss)


_of_transformers("vit", "ViT", "ViTForImageClassification", "ViTConfig", _WIDTH)
_of_transformers(
    "dinov2",
    "DINOv2",
    "Dinov2ForImageClassification",
    "Dinov2Config",
    {k: v for k, v in _WIDTH.items() if k != "intermediate_size"},
)
_of_transformers(
    "convnextv2",
    "ConvNeXt v2",
    "ConvNextV2ForImageClassification",
    "ConvNextV2Config",
    {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1], "drop_path_rate": 0.1},
)
_of_transformers(
    "swinv2",
    "Swin v2",
    "Swinv2ForImageClassification",
    "Swinv2Config",
    {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
)


@case("transformers", "MAE, masked pictures")
def vit_mae(compile) -> Job:
    import transformers

    model = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(
            **_WIDTH,
            decoder_hidden_size=24,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=48,
        )
    )
    return training(compile, model, [(x,) for x, _ in pictures(4, 3, 32, 32)], lambda m, x: m(pixel_values=x).loss)


@case("transformers", "SegFormer, segmentation")
def segformer(compile) -> Job:
    import transformers

    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=24,
        num_labels=5,
    )
    return training(
        compile,
        transformers.SegformerForSemanticSegmentation(config),
        _scenes(2, 32, 5),
        lambda m, x, y: m(pixel_values=x, labels=y).loss,
    )


# ---- segmentation-models-pytorch


@case("segmentation-models-pytorch", "U-Net, Dice and cross-entropy")
def smp_unet(compile) -> Job:
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=5)
    dice = smp.losses.DiceLoss("multiclass")
    return training(
        compile, model, _scenes(2, 32, 5), lambda m, x, y: (lambda o: dice(o, y) + F.cross_entropy(o, y))(m(x))
    )


@case("segmentation-models-pytorch", "FPN, focal loss")
def smp_fpn(compile) -> Job:
    import segmentation_models_pytorch as smp

    model = smp.FPN("mobilenet_v2", encoder_weights=None, classes=5)
    focal = smp.losses.FocalLoss("multiclass")
    return training(compile, model, _scenes(2, 32, 5), lambda m, x, y: focal(m(x), y))


@case("segmentation-models-pytorch", "DeepLabV3+, Jaccard loss")
def smp_deeplab(compile) -> Job:
    import segmentation_models_pytorch as smp

    model = smp.DeepLabV3Plus("resnet18", encoder_weights=None, classes=5)
    jaccard = smp.losses.JaccardLoss("multiclass")
    return training(compile, model, _scenes(2, 32, 5), lambda m, x, y: jaccard(m(x), y))


# ---- diffusers


def _noisy(compile, model, call, shape=(2, 3, 16, 16)) -> Job:
    """The training step of diffusers' own scripts: noise, time steps, the scheduler's add_noise, the loss on the
    noise."""
    import diffusers

    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    g = generator()
    batches = [(torch.randn(shape, generator=g),) for _ in range(STEPS)]

    def loss(m, x):
        noise = torch.randn_like(x)
        when = torch.randint(0, scheduler.config.num_train_timesteps, (x.shape[0],)).long()
        return F.mse_loss(call(m, scheduler.add_noise(x, noise, when), when).float(), noise.float())

    return training(compile, model, batches, loss)


@case("diffusers", "UNet2DModel, DDPM")
def diffusers_unet(compile) -> Job:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return _noisy(compile, model, lambda m, x, t: m(x, t).sample)


@case("diffusers", "UNet2DConditionModel, text conditions")
def diffusers_condition(compile) -> Job:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
    )
    words = torch.randn(2, 6, 24, generator=generator(9))
    return _noisy(compile, model, lambda m, x, t: m(x, t, words).sample, (2, 4, 16, 16))


@case("diffusers", "DiT")
def diffusers_dit(compile) -> Job:
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=100,
        norm_num_groups=8,
        out_channels=4,
    )
    classes = torch.tensor([1, 7])
    return _noisy(compile, model, lambda m, x, t: m(x, t, classes).sample, (2, 4, 8, 8))


@case("diffusers", "AutoencoderKL")
def diffusers_vae(compile) -> Job:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )

    def loss(m, x):
        posterior = m.encode(x).latent_dist
        return F.mse_loss(m.decode(posterior.sample()).sample, x) + 1e-3 * posterior.kl().mean()

    return training(compile, model, [(x,) for x, _ in pictures(2, 3, 16, 16)], loss)


# ---- vit-pytorch


@case("vit-pytorch", "ViT")
def vp_vit(compile) -> Job:
    from vit_pytorch import ViT

    return of_images(
        compile,
        ViT(
            image_size=32,
            patch_size=8,
            num_classes=10,
            dim=32,
            depth=2,
            heads=4,
            mlp_dim=64,
            dropout=0.1,
            emb_dropout=0.1,
        ),
    )


@case("vit-pytorch", "SimpleViT")
def vp_simple_vit(compile) -> Job:
    from vit_pytorch import SimpleViT

    return of_images(
        compile, SimpleViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=4, mlp_dim=64)
    )


@case("vit-pytorch", "CaiT, layer dropout drawn in Python")
def vp_cait(compile) -> Job:
    from vit_pytorch.cait import CaiT

    return of_images(
        compile,
        CaiT(
            image_size=32,
            patch_size=8,
            num_classes=10,
            dim=32,
            depth=2,
            cls_depth=1,
            heads=4,
            mlp_dim=64,
            dropout=0.1,
            layer_dropout=0.05,
        ),
    )
