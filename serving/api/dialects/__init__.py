"""The wire formats in which clients ask and are answered."""
