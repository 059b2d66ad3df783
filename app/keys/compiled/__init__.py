"""The compiled functions that replace the plain ones in `app.keys`."""
