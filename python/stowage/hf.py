"""The public name of stowage/integrations/transformers.py."""

from stowage.integrations.transformers import PlannedTraining, StowageCallback, plan

__all__ = ["PlannedTraining", "StowageCallback", "plan"]
