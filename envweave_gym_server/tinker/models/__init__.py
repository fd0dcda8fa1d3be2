"""Language models with LoRA adapters on CPU: forward passes, sampling, losses, files. Needs torch."""
