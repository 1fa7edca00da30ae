"""The nodes that describe a network, and the table of what each stands for."""
