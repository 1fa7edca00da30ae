"""What the list of cases is made of: samples of kernels and nodes, open questions, and facts of Macs."""
