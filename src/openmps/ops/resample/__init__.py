"""Images read at other places than their pixels."""
