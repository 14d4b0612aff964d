"""The public name of stowage/integrations/transformers.py."""

from stowage.integrations.transformers import PlannedTraining, plan

__all__ = ["PlannedTraining", "plan"]
