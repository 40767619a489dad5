"""Studies of fabrics: declared, run cell by cell, and answered with their uncertainty."""
