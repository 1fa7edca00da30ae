"""A network as one HTML page: its graph, what is in each layer, how it was trained and where it errs. Our addition."""
