"""Choice of tokens and log-probabilities from logits."""
