"""The handlers of the routes, named after their URLs; `app.api.exchange` has those of the operators."""
