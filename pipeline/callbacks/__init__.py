"""What happens around training: tracking, checkpoints, stopping, progress, samples, figures."""
