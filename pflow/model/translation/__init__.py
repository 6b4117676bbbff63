"""The first paper's models: a Transformer that translates hits to a sequence of particles."""

from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.reconstructor import TranslationReconstructor

__all__ = ["TranslationNetworkConfig", "TranslationReconstructor"]
