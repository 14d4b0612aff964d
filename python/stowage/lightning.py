"""The public name of stowage/integrations/lightning.py."""

from stowage.integrations.lightning import Stowage

__all__ = ["Stowage"]
