"""One door to every model: a configuration's type says which model it builds.

All models read `GemBatch` through the same `Tokens` and answer with an output that has `logits_BK`; `auxiliary_loss` is
what a model learns from besides the labels.
"""

from typing import Any

from torch import nn

from contracts.errors import InputError
from foundation.baselines.configs import InterFormerConfig, LibraryConfig, WukongConfig
from foundation.baselines.interformer import InterFormer
from foundation.baselines.wukong import Wukong
from foundation.config import GemConfig
from foundation.gem import Gem
from foundation.layout import InputLayout

ModelConfig = GemConfig | InterFormerConfig | WukongConfig | LibraryConfig


def build(layout: InputLayout, config: ModelConfig) -> nn.Module:
    """The model of that configuration, with fresh weights from torch's generator.

    InputError for a library's model where the library is not installed, and for an unknown configuration.
    """
    models: dict[type, Any] = {GemConfig: Gem, InterFormerConfig: InterFormer, WukongConfig: Wukong}
    if isinstance(config, LibraryConfig):
        return _library_model(layout, config)
    if type(config) not in models:
        raise InputError(f"no model has a configuration of type {type(config).__name__}; see foundation/models.py")
    model: nn.Module = models[type(config)](layout, config)
    return model


def _library_model(layout: InputLayout, config: LibraryConfig) -> nn.Module:
    try:
        import torch_rechub  # noqa: F401 - an extra that experiments alone need
    except ModuleNotFoundError as error:
        raise InputError(
            f"{config.name} needs torch-rechub; install the extra: pip install -e '.[experiments]'"
        ) from error
    from foundation.baselines.library import LibraryModel

    return LibraryModel(layout, config)
