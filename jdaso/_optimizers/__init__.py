"""The transformations that users put into ``optax.chain``."""
