"""Parameter groups, optimizers and learning-rate schedules: torch only."""
