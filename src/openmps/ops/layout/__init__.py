"""The same numbers in another arrangement: concatenated, padded, reshaped, copied to rows."""
