"""All that a training can be asked for at once, for tests of runs that stop and go on."""

from __future__ import annotations

from typing import Any

AUGMENTATION = (
    "flip:alternate,crop:1,translate:1,rotate:12.5,pad:reflect,cutout:2,brightness:0.1,contrast:0.2,"
    "normalize:0.4/0.25,smooth:0.1,mixup:0.3"
)
"""Every item."""
OPTIONS: dict[str, Any] = {
    "optimizer": "muon",
    "learning_rate": 0.02,
    "schedule": "one-cycle",
    "warmup": 3,
    "patience": 9,
    "keep": "best",
    "weight_decay": 0.01,
    "average": 0.75,
    "clip_norm": 0.5,
    "accumulate": 2,
    "augmentation": AUGMENTATION,
    "synchronizes_statistics": True,
}
OF_ITS_OWN = {
    "epochs",
    "batch_size",
    "seed",
    "checkpoint_every",
    "checkpoints_kept",
    "channel_format",
    "network",
    "decay",
}
"""How long, on what and where; and ``decay``, which belongs to another schedule."""
