"""Replays: work that equals what an earlier command buffer ran is captured, and run again as it was captured.

`segment` looks at what a command buffer holds and says what must be equal; `tape` runs it over fixed memory, `updates`
brings the updates at its end together; `recorder` captures what a tape does; `replayer` decides, remembers and plays.
"""
