"""Adam and AdamW in low precision."""

from .adam import Adam, AdamW

__all__ = ["Adam", "AdamW"]
