"""Replays: work that equals what an earlier command buffer ran is captured, and run again as it was captured.

`partition` looks at what a command buffer holds and says what must be equal; `static_function` runs it over fixed
memory, `updates` brings the updates at its end together; `recorder` captures what a static function does; `replayer`
decides, remembers and plays.
"""
