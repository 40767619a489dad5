"""An exchange as a compiled step sees it."""
