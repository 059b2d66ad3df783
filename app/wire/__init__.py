"""The formats: bytes to a `Call` and an `Answer` to bytes. Nothing here knows HTTP or the operators' rules."""
