"""What learned routers are made of: embeddings and small models (torch, scikit-learn). Knows neither pools nor strategies."""
