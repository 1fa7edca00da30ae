"""Normalizations with their gradients, alone and with what stands behind them."""
