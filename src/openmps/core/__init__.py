"""What every kernel shares: images, states, padding policies and the one encode path."""
