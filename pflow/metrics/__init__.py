"""Exact definitions of how good a reconstruction is."""

from __future__ import annotations

from pflow.metrics.evaluate import evaluate
from pflow.metrics.evaluation import Evaluation, EvaluationResult, EvaluationSettings
from pflow.metrics.match import Matching

__all__ = ["Evaluation", "EvaluationResult", "EvaluationSettings", "Matching", "evaluate"]
