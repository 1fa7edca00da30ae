"""Images: their memory, their descriptors, batches, allocators, and the ways in and out of them."""

from openmps.core.image import allocator as allocator  # tells images of their batches and allocators
