"""What every kernel obeys: properties, checks and the one encode path."""
