"""The first paper's models: a Transformer that translates hits to a sequence of particles."""

from pflow.model.translation.config import TranslationLossConfig, TranslationNetworkConfig
from pflow.model.translation.reconstructor import TranslationReconstructor

__all__ = ["TranslationLossConfig", "TranslationNetworkConfig", "TranslationReconstructor"]
