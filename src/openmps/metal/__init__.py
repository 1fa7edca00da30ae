"""The machine: memory, order, time. Knows no image and no kernel."""
