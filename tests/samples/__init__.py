"""Sample configurations of every kernel, one file a stem; the catalogue lists them."""
