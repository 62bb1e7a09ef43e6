"""The catalog: shapes of models and data-sheet figures of cards, one copy for both worlds."""

from __future__ import annotations

from policies.catalog.hf import model_from_config, unmodelled
from policies.catalog.loader import card, cards, model, models
from policies.catalog.shapes import Card, ModelShape

__all__ = ["Card", "ModelShape", "card", "cards", "model", "model_from_config", "models", "unmodelled"]
