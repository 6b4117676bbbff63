"""Exact definitions of how good a reconstruction is."""

from __future__ import annotations

from pflow.metrics.evaluation import Evaluation, EvaluationResult, Settings, evaluate
from pflow.metrics.match import Matching

__all__ = ["Evaluation", "EvaluationResult", "Matching", "Settings", "evaluate"]
