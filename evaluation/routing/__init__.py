"""What learned routers are made of: embeddings and small models. Knows neither pools nor strategies."""
