"""Rewriting functions: who fills and reads each value, and the rules that replace equations by faster ones."""
