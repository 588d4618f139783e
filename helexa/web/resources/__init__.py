"""What a route does: one file a route family."""
