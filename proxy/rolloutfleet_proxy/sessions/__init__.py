"""Sessions: keys, calls in flight, rewards and the trajectories that they close."""
