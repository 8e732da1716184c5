"""Lightning systems, one objective per file; their networks, losses and schedules live in the folders beside them."""
