"""The handlers of the routes, named after their URLs; `app.api.exchange` contains the operators' handlers."""
