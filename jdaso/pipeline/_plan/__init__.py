"""From a loss to stages: traced, priced, cut; nothing here runs on several nodes."""
