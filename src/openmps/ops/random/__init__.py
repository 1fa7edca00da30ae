"""Random numbers: generators and distributions."""
