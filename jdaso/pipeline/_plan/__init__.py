"""From a loss to stages."""
