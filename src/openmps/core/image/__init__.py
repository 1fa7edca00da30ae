"""Images: their memory, their descriptors, batches, allocators, and the ways in and out of them."""
