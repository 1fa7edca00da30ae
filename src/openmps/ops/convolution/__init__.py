"""Convolutions, forward and backward, in the forms that serve different shapes and libraries."""
