"""Fusions: rules over operations, each with the equations that it must equal."""
