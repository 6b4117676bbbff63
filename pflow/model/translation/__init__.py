"""The first paper's models: a Transformer that translates hits to a sequence of particles."""

from pflow.model.translation.reconstructor import TranslationReconstructor
from pflow.model.translation.tokens import TranslationNetworkConfig

__all__ = ["TranslationNetworkConfig", "TranslationReconstructor"]
