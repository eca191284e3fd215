"""What learned routers are made of: embeddings and small models in numpy. Knows neither pools nor strategies."""
