"""What is told: reports of plans and budgets, and progress meanwhile."""
