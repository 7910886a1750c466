"""The images of a fleet on a cluster: `make images` builds them."""
