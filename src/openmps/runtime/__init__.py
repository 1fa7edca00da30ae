"""Running functions and repeating them: what they are bound to, what a command buffer holds, replays, and devices."""
