"""Building blocks of learned routers: embeddings and small models. Independent of pools and strategies."""
