"""Messages to token ids and back, for one model."""
