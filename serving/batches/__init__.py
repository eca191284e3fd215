"""Work without hurry: files of requests, and the batches that run them line by line. Knows no HTTP."""
