"""What a settings file may say, what follows from it, and where keys are read."""
