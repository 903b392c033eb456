"""Small ONNX models as code, and the published ones that `scripts/fetch_models.py` gets.

Each builder returns a model and example inputs by name, the same ones every time. `python -m models
DIRECTORY` writes them as files.
"""

from models import (
    attention_block,
    conv_block,
    dynamic_shape,
    encoder_block,
    gru,
    if_branch,
    loop,
    mlp,
    quantized_mlp,
    residual_cnn,
)
from models.build import Build, Inputs

MODELS: dict[str, Build] = {
    "mlp": mlp.build,
    "conv_block": conv_block.build,
    "residual_cnn": residual_cnn.build,
    "attention_block": attention_block.build,
    "encoder_block": encoder_block.build,
    "gru": gru.build,
    "if_branch": if_branch.build,
    "loop": loop.build,
    "dynamic_shape": dynamic_shape.build,
    "quantized_mlp": quantized_mlp.build,
}

__all__ = ["MODELS", "Build", "Inputs"]
