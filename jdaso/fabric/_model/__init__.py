"""Models of the seconds that exchanges and pipelines take on a fabric."""
