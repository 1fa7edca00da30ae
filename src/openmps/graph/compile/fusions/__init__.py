"""Fusions: rules over operations, each with the steps that it must equal."""
