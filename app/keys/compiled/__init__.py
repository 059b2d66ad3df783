"""The compiled functions that take over from the plain ones in `app.keys`."""
