"""Updates of parameters: rules of optimizers, shards of vectors, sums over processes."""
