"""What each architecture is fed, step by step: ids, images, sounds; all of it drawn beforehand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .architectures import FIRST, IMAGE, PATCH, Architecture, Size

DECODE_STEPS = 1
ANSWER = 6
"""Tokens that the decoder of an encoder-decoder is given."""
PADDING = 2
"""Tokens of an encoder's prompt that its attention mask hides, where it is longer than twice that."""

Fed = dict[str, torch.Tensor]
"""The arguments of one step by name, without the cache."""


def what_is_fed(architecture: Architecture, size: Size, seed: int) -> list[Fed]:
    """The arguments of every step. Nothing of them depends on results, so that every run is fed the same."""
    draw = torch.Generator().manual_seed(seed)
    return FEEDINGS[architecture.fed](size, draw)


def _ids(count: int, draw: torch.Generator) -> torch.Tensor:
    ids = torch.randint(3, IMAGE, (1, count), generator=draw)
    ids[0, 0] = FIRST
    return ids


def _values(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Numbers that bfloat16 and float16 hold exactly."""
    return torch.randn(shape, generator=draw).bfloat16().half().float()


def _prompt(size: Size, draw: torch.Generator) -> list[Fed]:
    prompt, *rest = _ids(size.tokens + DECODE_STEPS, draw).split([size.tokens, *[1] * DECODE_STEPS], 1)
    return [{"input_ids": ids} for ids in (prompt, *rest)]


def _padded(size: Size, draw: torch.Generator) -> list[Fed]:
    ids = _ids(size.tokens, draw)
    mask = torch.ones_like(ids)
    if size.tokens > 2 * PADDING:
        mask[:, -PADDING:] = 0
    return [{"input_ids": ids, "attention_mask": mask}]


def _with_answer(size: Size, draw: torch.Generator) -> list[Fed]:
    (fed,) = _padded(size, draw)
    return [{**fed, "decoder_input_ids": _ids(ANSWER, draw)}]


def _sound(size: Size, draw: torch.Generator) -> list[Fed]:
    return [
        {"input_features": _values((1, 16, 2 * size.tokens), draw), "decoder_input_ids": _ids(ANSWER, draw)}
    ]


def _image(size: Size, draw: torch.Generator) -> list[Fed]:
    side = size.patches * PATCH
    return [{"pixel_values": _values((1, 3, side, side), draw)}]


def _image_and_padded(size: Size, draw: torch.Generator) -> list[Fed]:
    (image,), (prompt,) = _image(size, draw), _padded(size, draw)
    return [{**prompt, **image}]


def _with_image(size: Size, draw: torch.Generator) -> list[Fed]:
    """The image stands behind the first token."""
    (image,), (prompt, *rest) = _image(size, draw), _prompt(size, draw)
    return [{"input_ids": _marked(prompt["input_ids"], size.patches**2), **image}, *rest]


def _with_patches(size: Size, draw: torch.Generator) -> list[Fed]:
    """Qwen2-VL is fed pieces of two equal frames, each piece a row; four of them become one token."""
    prompt, *rest = _prompt(size, draw)
    patches = _values((size.patches**2, 3 * 2 * PATCH * PATCH), draw)
    grid = torch.tensor([[1, size.patches, size.patches]])
    ids = _marked(prompt["input_ids"], size.patches**2 // 4)
    kinds = (ids == IMAGE).long()
    return [
        {"input_ids": ids, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": kinds},
        *rest,
    ]


def _marked(ids: torch.Tensor, marks: int) -> torch.Tensor:
    return torch.cat([ids[:, :1], torch.full((1, marks), IMAGE), ids[:, 1:]], 1)


FEEDINGS: dict[str, Callable[[Size, torch.Generator], list[Fed]]] = {
    "prompt": _prompt,
    "padded prompt": _padded,
    "prompt and answer": _with_answer,
    "sound and answer": _sound,
    "image": _image,
    "image and padded prompt": _image_and_padded,
    "prompt with image": _with_image,
    "prompt with patches": _with_patches,
}
