"""What a store of features is, and how to reach one by URL."""
