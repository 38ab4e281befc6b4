"""A trained model in the forms that servers take, and what talks to such a server."""
