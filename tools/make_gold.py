#!/usr/bin/env python3
"""Records the reference cases that `treb parity` is compared with.

    make_gold.py --out tests/gold all            the small recorded cases, one folder each
    make_gold.py --out DIR vl-moe-mix            one of them
    make_gold.py --out DIR --random 7            one case of shapes drawn from seed 7 (the folder is DIR/r7-<family>)
    make_gold.py --check CASE_DIR                recompute an existing case and compare with its expected values

Needs torch and transformers from PyPI (`pip install torch transformers safetensors`; the recorded cases were made with
torch 2.11 and transformers 5.17). treb itself needs no Python: the tool is run once, by hand, and its output is committed.

A case is a checkpoint as `save_pretrained` writes it (config.json, model.safetensors) plus

    inputs.safetensors    input_ids, labels [B,S]; attention_mask where rows are padded; for vision-language models
                          mm_token_type_ids and, where there is media, pixel_values, image_grid_thw, pixel_values_videos,
                          video_grid_thw and position_ids [3,B,S]; position_ids [B,S] where rows hold several documents
    expected.safetensors  loss, aux_loss, logits, decoder.N.out (before the deepstack add), router.N.logits (N counts MoE
                          layers), vision.hidden and vision.deepstack.N (of the last call of the vision tower: on
                          videos if there are any, else on images), grad.<parameter>
    info.json             losses and gradient norms of five AdamW steps, aux_coef, no_grad_params, router_gap (the
                          smallest distance in logits between the last selected expert and the first that is not)
    hub/                  for some cases: the same weights with input-major experts and the older rope keys

All in fp32 on the CPU with eager attention and eager experts. `loss` includes aux_coef * aux_loss. Norms and biases are
perturbed so that each of them affects the result, and weights are redrawn until no routing decision is nearly a tie. The
same seed gives the same weights and inputs; the expected numbers then agree up to rounding between machines.
"""

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass, field

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM, Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM,
    Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

FAMILIES = {
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_5_moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
}
OPTIMIZER = "AdamW lr 1e-3 betas 0.9 0.95 eps 1e-8 weight_decay 0.1 (all parameters), clip 1.0"
STEPS = 5
GAP_FIRST, GAP_TRAIN = 1e-3, 3e-4  # smallest router gaps accepted: in the recorded pass, in the training steps
IGNORE = -100
DROP = object()


@dataclass
class Row:
    """One row of a batch: segments are ("text", n), ("image", h, w) and ("video", t, h, w)."""
    segments: list
    pad: str = "right"


@dataclass
class Case:
    name: str
    family: str
    text: dict
    rows: list
    vision: dict = None
    tied: bool = False
    seed: int = 0
    hub: bool = False
    edits: dict = field(default_factory=dict)  # text keys to rewrite in the saved config.json; DROP removes a key
    mask_always: bool = False                  # give an attention_mask even where no row is padded
    packed: bool = False                       # the documents lie in one row, and position_ids start again
    label_drop: float = 0.0                    # share of the other labels that are ignored
    patch_scale: float = 1.0                   # scale of the patch and position embeddings; small values make LayerNorm's eps matter


# ---------------------------------------------------------------------------------------------------- configurations

def is_vl(family):
    return family.startswith("qwen3_vl") or family == "qwen3_5_moe"


def is_moe(family):
    return family.endswith("_moe")


def special_ids(case):
    """Ids of image, video, vision_start, vision_end: near the end of the vocabulary, none of them the last."""
    top = case.text["vocab_size"] - 6
    return {"image": top, "video": top + 1, "start": top + 2, "end": top + 3}


def build_config(case):
    cls, _ = FAMILIES[case.family]
    if not is_vl(case.family):
        return cls(tie_word_embeddings=case.tied, **case.text)
    ids = special_ids(case)
    return cls(
        text_config=dict(case.text), vision_config=dict(case.vision), tie_word_embeddings=case.tied,
        image_token_id=ids["image"], video_token_id=ids["video"],
        vision_start_token_id=ids["start"], vision_end_token_id=ids["end"],
    )


def text_config(config):
    return getattr(config, "text_config", config)


def edit_config(folder, edits):
    """Rewrites keys of the text part of a saved config.json."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    text = config.get("text_config", config)
    text.update(edits)
    for key in [k for k, v in text.items() if v is DROP]:
        del text[key]
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


# ----------------------------------------------------------------------------------------------------------- weights

def draw_weight(name, shape, case, gen):
    """A value for one parameter: norms around 1, biases off 0, matrices scaled by their fan-in."""
    noise = torch.randn(shape, generator=gen)
    if "patch_embed" in name or "pos_embed" in name:
        noise *= case.patch_scale
    if name.endswith("bias"):
        return 0.1 * noise
    if name.endswith("A_log"):  # some heads of a delta net keep their state over many tokens
        return torch.log(0.005 * 400 ** torch.rand(shape, generator=gen))
    if len(shape) == 1:
        return 1 + 0.1 * noise
    if name.endswith("conv1d.weight"):
        return noise / shape[-1] ** 0.5
    if "embed_tokens" in name:
        return (0.25 if case.tied else 0.5) * noise
    if "pos_embed" in name:
        return 0.5 * noise
    if name.endswith("mlp.gate.weight"):
        return 2.0 * noise / shape[-1] ** 0.5
    fan_in = shape[-1] if len(shape) < 4 else shape[1:].numel()
    return noise / fan_in ** 0.5


def build_model(case, gen):
    _, cls = FAMILIES[case.family]
    model = cls(build_config(case)).float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(draw_weight(name, p.shape, case, gen))
    return model


def load_model(folder):
    with open(os.path.join(folder, "config.json")) as f:
        family = json.load(f)["model_type"]
    _, cls = FAMILIES.get(family, (None, AutoModelForCausalLM))
    return cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )


def write_hub_variant(folder):
    """Writes the checkpoint in the form of the hub: input-major experts, the older config keys."""
    hub = os.path.join(folder, "hub")
    os.makedirs(hub, exist_ok=True)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    for name in weights:
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights[name] = weights[name].transpose(1, 2).contiguous()
    save_file(weights, os.path.join(hub, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["rope_scaling"] = rope
    if "num_local_experts" in text:
        text["num_experts"] = text.pop("num_local_experts")
    config["vision_config"].pop("rope_parameters", None)
    config["vision_config"]["model_type"] = config["model_type"]
    with open(os.path.join(hub, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


# ------------------------------------------------------------------------------------------------------------ inputs

def row_tokens(case, row, rng):
    """Ids and media types (0 text, 1 image, 2 video) of one unpadded row."""
    ids = special_ids(case) if is_vl(case.family) else {}
    plain = ids.get("image", case.text["vocab_size"])
    out, kinds = [], []

    def text(n):
        out.extend(rng.randrange(plain) for _ in range(n))
        kinds.extend([0] * n)

    def media(kind, h, w):
        n = h * w // 4
        out.extend([ids["start"]] + [ids[kind]] * n + [ids["end"]])
        kinds.extend([0] + [1 if kind == "image" else 2] * n + [0])

    for segment in row.segments:
        if segment[0] == "text":
            text(segment[1])
        elif segment[0] == "image":
            media("image", *segment[1:])
        else:
            for _ in range(segment[1]):
                text(2)  # in place of the timestamp
                media("video", *segment[2:])
    return out, kinds


def row_labels(case, tokens, rng):
    """Labels of one unpadded row: the first three tokens and everything around media are not targets."""
    special = set(special_ids(case).values()) if is_vl(case.family) else set()
    return [
        IGNORE if i < 3 or t in special or rng.random() < case.label_drop else t for i, t in enumerate(tokens)
    ]


def padded(values, length, fill, side):
    gap = [fill] * (length - len(values))
    return gap + values if side == "left" else values + gap


def grids(case, kind):
    found = [s for row in case.rows for s in row.segments if s[0] == kind]
    return [[1, *s[1:]] if kind == "image" else list(s[1:]) for s in found]


def draw_pixels(case, grid, gen):
    v = case.vision
    features = v["in_channels"] * v["temporal_patch_size"] * v["patch_size"] ** 2
    return torch.randn(sum(t * h * w for t, h, w in grid), features, generator=gen)


def build_inputs(case, gen, rng):
    pad_id = case.text.get("pad_token_id") or 0
    rows = [row_tokens(case, row, rng) for row in case.rows]
    if case.text.get("pad_token_id") is not None:  # the padding id occurs as an ordinary token too: its row gets no gradient
        rows[0][0][0] = pad_id
    length = max(len(tokens) for tokens, _ in rows)
    labels = [row_labels(case, tokens, rng) for tokens, _ in rows]

    def stack(values, fill):
        return torch.tensor([padded(v, length, fill, row.pad) for v, row in zip(values, case.rows)])

    if case.packed:
        return {
            "input_ids": torch.tensor([sum((t for t, _ in rows), [])]), "labels": torch.tensor([sum(labels, [])]),
            "position_ids": torch.tensor([[i for t, _ in rows for i in range(len(t))]]),
        }
    inputs = {"input_ids": stack([t for t, _ in rows], pad_id), "labels": stack(labels, IGNORE)}
    mask = stack([[1] * len(t) for t, _ in rows], 0)
    if case.mask_always or not mask.all():
        inputs["attention_mask"] = mask
    if not is_vl(case.family):
        return inputs
    inputs["mm_token_type_ids"] = stack([k for _, k in rows], 0)
    for kind, pixels, thw in (
        ("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        grid = grids(case, kind)
        if grid:
            inputs[pixels], inputs[thw] = draw_pixels(case, grid, gen), torch.tensor(grid)
    return inputs


def add_position_ids(model, inputs):
    if "image_grid_thw" in inputs or "video_grid_thw" in inputs:
        names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "attention_mask")
        inputs["position_ids"] = model.model.get_rope_index(**{k: inputs[k] for k in names if k in inputs})[0]


# ---------------------------------------------------------------------------------------------------- the reference

def decoder_layers(model):
    return getattr(model.model, "language_model", model.model).layers


def forward(model, inputs):
    extra = {"output_router_logits": True} if hasattr(text_config(model.config), "num_experts") else {}
    return model(**inputs, use_cache=False, **extra)


class Recorder:
    """Collects the outputs of the decoder layers, routers and vision tower during a forward pass."""

    def __init__(self, model):
        self.got = {}
        self.hooks = []
        routers = 0
        for i, layer in enumerate(decoder_layers(model)):
            self.watch(layer, lambda out, i=i: {f"decoder.{i}.out": out})
            if hasattr(layer.mlp, "gate"):
                self.watch(layer.mlp.gate, lambda out, n=routers: {f"router.{n}.logits": out[0]})
                routers += 1
        if hasattr(model.model, "visual"):
            self.watch(model.model.visual, self.vision)

    def watch(self, module, pick):
        self.hooks.append(module.register_forward_hook(
            lambda _m, _a, out: self.got.update({k: v.detach().clone() for k, v in pick(out).items()})
        ))

    @staticmethod
    def vision(out):
        named = {f"vision.deepstack.{j}": f for j, f in enumerate(getattr(out, "deepstack_features", []))}
        return {"vision.hidden": out.pooler_output, **named}

    def close(self):
        for hook in self.hooks:
            hook.remove()


def router_gap(recorded, inputs, config):
    """Smallest distance between the last selected expert and the first that is not, over rows that are no padding."""
    k = getattr(text_config(config), "num_experts_per_tok", 0)
    gaps = []
    for name, logits in recorded.items():
        if name.startswith("router.") and logits.shape[1] > k:
            if "attention_mask" in inputs:
                logits = logits[inputs["attention_mask"].reshape(-1).bool()]
            top = logits.topk(k + 1).values
            gaps.append((top[:, k - 1] - top[:, k]).min().item())
    return min(gaps, default=None)


def compute_expected(model, inputs):
    """One forward and backward pass: the tensors of expected.safetensors and the parameters without a gradient."""
    recorder = Recorder(model)
    model.zero_grad(set_to_none=True)
    out = forward(model, inputs)
    recorder.close()
    out.loss.backward()
    expected = {"loss": out.loss.detach().reshape(1), "logits": out.logits.detach()}
    if getattr(out, "aux_loss", None) is not None:
        expected["aux_loss"] = out.aux_loss.detach().reshape(1)
    expected.update(recorder.got)
    without = [n for n, p in model.named_parameters() if p.grad is None]
    expected.update({f"grad.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None})
    return {k: v.detach().clone().contiguous() for k, v in expected.items()}, without


def train(model, inputs):
    """A few optimizer steps on the one batch: losses and gradient norms before each, and the smallest router gap."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms, gaps = [], [], []
    recorder = Recorder(model)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(model, inputs).loss
        gaps.append(router_gap(recorder.got, inputs, model.config))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    recorder.close()
    return losses, norms, min((g for g in gaps if g is not None), default=None)


# ------------------------------------------------------------------------------------------------------------- cases

def attempt(case, folder, number):
    """Draws, saves and computes a case; returns False if some routing decision is too close."""
    gen = torch.Generator().manual_seed(case.seed * 1000 + number)
    rng = random.Random(case.seed * 1000 + number)
    build_model(case, gen).save_pretrained(folder)
    if case.edits:
        edit_config(folder, case.edits)
    model = load_model(folder)
    inputs = build_inputs(case, gen, rng)
    if is_vl(case.family):
        add_position_ids(model, inputs)
    expected, without = compute_expected(model, inputs)
    gap = router_gap(expected, inputs, model.config)
    losses, norms, train_gap = train(model, inputs)
    if gap is not None and (gap < GAP_FIRST or train_gap < GAP_TRAIN):
        return False
    info = {
        "transformers": transformers.__version__, "torch": torch.__version__, "loss": expected["loss"].item(),
        "no_grad_params": without,
        "train": {"optimizer": OPTIMIZER, "losses": losses, "grad_norms": norms},
    }
    if gap is not None:
        info["router_gap"] = gap
    if is_moe(case.family):
        info["aux_coef"] = text_config(model.config).router_aux_loss_coef
    save_file({k: v.contiguous() for k, v in inputs.items()}, os.path.join(folder, "inputs.safetensors"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json"), "w") as f:
        json.dump(info, f, indent=1)
        f.write("\n")
    if case.hub:
        write_hub_variant(folder)
        same = forward(load_model(os.path.join(folder, "hub")), inputs).loss.item()
        assert abs(same - info["loss"]) < 1e-6, "the hub variant gives another loss"
    return True


def make(case, out, attempt=attempt, draws=200):
    folder = os.path.join(out, case.name)
    os.makedirs(folder, exist_ok=True)
    for number in range(draws):
        if attempt(case, folder, number):
            unused = os.path.join(folder, "generation_config.json")
            os.path.exists(unused) and os.remove(unused)
            size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)
            print(f"{case.name}: draw {number}, {size // 1024} KiB")
            return
    sys.exit(f"{case.name}: no draw without a near tie in routing")


def recorded_cases():
    """The cases kept in tests/gold: tiny, and as asymmetric as possible. D differs from F and 2F throughout."""
    rope = {"rope_type": "default", "rope_theta": 500000.0, "mrope_interleaved": True}
    vision = dict(
        depth=3, hidden_size=24, num_heads=2, intermediate_size=40, in_channels=3, patch_size=4, temporal_patch_size=2,
        spatial_merge_size=2, num_position_embeddings=25, out_hidden_size=28, deepstack_visual_indexes=[0, 2],
    )
    return [
        Case(
            "vl-moe-mix", "qwen3_vl_moe", tied=True, seed=1, hub=True, vision=vision,
            text=dict(
                vocab_size=83, hidden_size=28, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                head_dim=16, intermediate_size=36, moe_intermediate_size=12, num_experts=6, num_experts_per_tok=3,
                mlp_only_layers=[1], norm_topk_prob=False, router_aux_loss_coef=0.02, max_position_embeddings=512,
                # a small theta: with a usual one low frequencies are too slow to show which axis they belong to
                rope_parameters={**rope, "rope_theta": 250.0, "mrope_section": [3, 3, 2]},
            ),
            rows=[
                Row([("text", 4), ("image", 4, 6), ("text", 5), ("video", 2, 2, 4), ("text", 6)]),
                Row([("text", 3), ("image", 6, 2), ("text", 7)], pad="left"),
            ],
        ),
        Case(
            "moe-rawtopk", "qwen3_moe", seed=2,
            text=dict(
                vocab_size=71, hidden_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                head_dim=10, intermediate_size=34, moe_intermediate_size=14, num_experts=5, num_experts_per_tok=2,
                decoder_sparse_step=2, norm_topk_prob=False, attention_bias=True, router_aux_loss_coef=0.05,
                rms_norm_eps=1e-5, max_position_embeddings=512,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            ),
            rows=[Row([("text", 19)]), Row([("text", 13)])],
        ),
        Case(
            "dense-tied-left", "qwen3", tied=True, seed=3,
            text=dict(
                vocab_size=67, hidden_size=20, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                head_dim=8, intermediate_size=44, max_position_embeddings=512,
                rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            ),
            rows=[Row([("text", 17)]), Row([("text", 11)], pad="left")],
        ),
        Case(
            "vl-dense-bias", "qwen3_vl", seed=4, patch_scale=0.05,
            vision=dict(vision, depth=2, hidden_size=16, num_heads=2, intermediate_size=36, num_position_embeddings=16,
                        out_hidden_size=24, deepstack_visual_indexes=[1]),
            text=dict(
                vocab_size=77, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                head_dim=12, intermediate_size=40, attention_bias=True, max_position_embeddings=512,
                rope_parameters={**rope, "mrope_section": [2, 2, 2]},
            ),
            rows=[Row([("image", 4, 4), ("text", 4), ("image", 2, 8), ("text", 8)])],
        ),
        Case(
            "vl-delta", "qwen3_5_moe", seed=9,
            vision={k: v for k, v in dict(vision, out_hidden_size=20, depth=1, hidden_size=12, num_heads=1).items()
                    if k != "deepstack_visual_indexes"},
            text=dict(
                vocab_size=79, hidden_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                head_dim=24, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=6,
                linear_value_head_dim=10, linear_conv_kernel_dim=3, moe_intermediate_size=9, num_experts=4,
                num_experts_per_tok=2, shared_expert_intermediate_size=11, router_aux_loss_coef=0.02,
                layer_types=["linear_attention", "full_attention"], max_position_embeddings=512,
                rope_parameters=dict(rope_type="default", rope_theta=250.0, partial_rotary_factor=0.5,
                                     mrope_interleaved=True, mrope_section=[2, 2, 2]),
            ),
            rows=[
                Row([("text", 4), ("image", 4, 6), ("text", 5), ("video", 3, 2, 4), ("text", 6)]),
                Row([("image", 2, 2), ("image", 6, 2), ("text", 7)], pad="left"),
            ],
        ),
    ]


# ------------------------------------------------------------------------------------------------------ random cases

GRIDS = [(2, 2), (2, 14), (10, 4), (4, 4), (6, 4), (4, 6), (8, 2), (12, 10), (6, 6)]


def sections(rng, half):
    """Three mrope sections that add up to half a head."""
    h = rng.randint(1, max(1, half // 3))
    w = rng.randint(1, max(1, half // 3))
    return [half - h - w, h, w]


def random_text(rng, family):
    head_dim = rng.choice(range(8, 33, 2))
    kv = rng.choice([1, 2, 3])
    text = dict(
        vocab_size=rng.randrange(61, 230, 2), hidden_size=rng.choice(range(20, 73, 4)),
        num_hidden_layers=rng.randint(2, 4), num_attention_heads=kv * rng.choice([1, 2, 3, 4]), num_key_value_heads=kv,
        head_dim=head_dim, intermediate_size=rng.choice(range(18, 90, 6)),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]), attention_bias=rng.random() < 0.4,
        initializer_range=rng.choice([0.02, 0.05]), max_position_embeddings=rng.choice([512, 4096]),
        rope_parameters={"rope_type": "default", "rope_theta": rng.choice([1e2, 1e4, 5e5, 5e6])},
    )
    if is_vl(family):
        text["rope_parameters"].update(mrope_interleaved=True, mrope_section=sections(rng, head_dim // 2))
    if is_moe(family):
        text.update(random_experts(rng, text))
    return text


def random_experts(rng, text):
    layers, hidden = text["num_hidden_layers"], text["hidden_size"]
    experts = rng.choice([4, 5, 6, 8, 11, 16])
    top = experts if experts == 4 and rng.random() < 0.5 else rng.randint(1, 4)
    step = rng.choice([1, 1, 2])
    sparse = [i for i in range(layers) if (i + 1) % step == 0]
    dense = rng.sample(sparse, rng.randint(0, len(sparse) - 1)) if rng.random() < 0.4 else []
    return dict(
        num_experts=experts, num_experts_per_tok=top, decoder_sparse_step=step, mlp_only_layers=sorted(dense),
        moe_intermediate_size=rng.choice([i for i in range(8, 50, 2) if hidden not in (i, 2 * i)]),
        norm_topk_prob=rng.random() < 0.5, router_aux_loss_coef=rng.choice([0.001, 0.01, 0.1]),
    )


def random_vision(rng, out_hidden):
    depth = rng.randint(1, 4)
    heads = rng.choice([1, 2, 3])
    taken = sorted(rng.sample(range(depth), rng.randint(0, min(3, depth))))
    return dict(
        depth=depth, hidden_size=heads * rng.choice([8, 12, 16, 20]), num_heads=heads,
        intermediate_size=rng.choice(range(22, 70, 6)), in_channels=rng.choice([3, 3, 1]),
        patch_size=rng.choice([4, 8, 14, 16]), temporal_patch_size=2, spatial_merge_size=2,
        num_position_embeddings=rng.choice([2, 3, 5, 7, 8]) ** 2, out_hidden_size=out_hidden,
        deepstack_visual_indexes=taken,
    )


def random_row(rng, media):
    segments = [] if media and rng.random() < 0.3 else [("text", rng.randint(4, 12))]
    for _ in range(rng.randint(0, 3) if media else 0):
        h, w = rng.choice(GRIDS)
        segments.append(("video", rng.randint(1, 3), h, w) if rng.random() < 0.35 else ("image", h, w))
        if rng.random() < 0.7:
            segments.append(("text", rng.randint(1, 6)))
    segments.append(("text", rng.randint(6, 18)))
    return Row(segments, pad=rng.choice(["left", "right"]))


def random_case(seed):
    rng = random.Random(seed)
    family = list(FAMILIES)[seed % 4]  # the families before Qwen3.5
    text = random_text(rng, family)
    case = Case(f"r{seed}-{family}", family, text, rows=[], tied=rng.random() < 0.4, seed=1000 + seed)
    if is_vl(family):
        case.vision = random_vision(rng, text["hidden_size"])
    media = is_vl(family) and rng.random() < 0.9
    case.rows = [random_row(rng, media) for _ in range(rng.randint(1, 3))]
    case.mask_always = rng.random() < 0.5
    case.label_drop = rng.choice([0.0, 0.3])
    case.hub = family == "qwen3_vl_moe" and rng.random() < 0.4
    if rng.random() < 0.3:
        text["pad_token_id"] = rng.randrange(text["vocab_size"] - 10)
    if not is_moe(family) and rng.random() < 0.3:
        text["num_key_value_heads"] = text["num_attention_heads"]
        case.edits["num_key_value_heads"] = None
    if is_moe(family) and rng.random() < 0.3:  # these two classes fall back on hidden / heads
        text["head_dim"] = 2 * rng.randint(4, 8)
        text["hidden_size"] = text["head_dim"] * text["num_attention_heads"]
        fix_hidden(case, rng)
        case.edits["head_dim"] = DROP
    return case


def fix_hidden(case, rng):
    """Updates the values that depend on the hidden and head sizes after these changed."""
    text, hidden = case.text, case.text["hidden_size"]
    if hidden in (text["moe_intermediate_size"], 2 * text["moe_intermediate_size"]):
        text["moe_intermediate_size"] += 2
    if case.vision:
        case.vision["out_hidden_size"] = hidden
        text["rope_parameters"]["mrope_section"] = sections(rng, text["head_dim"] // 2)


# ------------------------------------------------------------------------------------------------------------- check

def relative(a, b):
    scale = b.abs().max().item()
    return (a - b).abs().max().item() / (scale or 1.0)


def real_rows(name, tensor, inputs):
    """Removes padded positions, whose values are undefined, from per-token tensors."""
    if "attention_mask" not in inputs or not name.startswith(("logits", "decoder.", "router.")):
        return tensor
    keep = inputs["attention_mask"].reshape(-1).bool()
    return tensor.reshape(keep.numel(), -1)[keep]


def pair(name, want, got):
    """The computed tensor for an expected one (some cases hold only samples of each gradient)."""
    if name.startswith("gradidx."):
        return None
    if name.startswith("gradval."):
        parameter = name[len("gradval."):]
        return got["grad." + parameter].reshape(-1)[want["gradidx." + parameter]]
    if name.startswith("gradnorm."):
        return got["grad." + name[len("gradnorm."):]].norm().reshape(1)
    return got[name]


def check(folder, tolerance=2e-5):
    """Recomputes a case with this tool and compares; returns whether everything agrees."""
    inputs = load_file(os.path.join(folder, "inputs.safetensors"))
    want = load_file(os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json")) as f:
        info = json.load(f)
    model = load_model(folder)
    got, without = compute_expected(model, inputs)
    worst = {}
    for name, tensor in want.items():
        mine = pair(name, want, got)
        if mine is not None:
            kind = name.split(".")[0]
            error = relative(real_rows(name, mine, inputs), real_rows(name, tensor, inputs))
            worst[kind] = max(worst.get(kind, (0.0, "")), (error, name))
    losses, norms, _ = train(model, inputs)
    for kind, mine in (("losses", losses), ("grad_norms", norms)):
        worst["train " + kind] = (relative(torch.tensor(mine), torch.tensor(info["train"][kind])), "")
    for kind, (error, name) in worst.items():
        print(f"{kind:18} {error:.2e}  {name}")
    same = without == info["no_grad_params"] and all(e <= tolerance for e, _ in worst.values())
    print(f"{folder}: {'agrees' if same else 'DIFFERS'}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", help="name of a recorded case, or all")
    parser.add_argument("--out", help="folder under which a folder per case is made")
    parser.add_argument("--random", type=int, metavar="SEED", help="generate a random case")
    parser.add_argument("--check", metavar="CASE_DIR", help="recompute a case and compare")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a fixed order of summation
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.check:
        sys.exit(0 if check(args.check) else 1)
    if not args.out or (args.case is None) == (args.random is None):
        parser.error("give --out DIR and either a case name or --random SEED")
    known = {c.name: c for c in recorded_cases()}
    if args.random is not None:
        chosen = [random_case(args.random)]
    elif args.case == "all":
        chosen = list(known.values())
    elif args.case in known:
        chosen = [known[args.case]]
    else:
        parser.error(f"no case {args.case}; there are {', '.join(known)}")
    for case in chosen:
        make(case, args.out)


if __name__ == "__main__":
    main()
