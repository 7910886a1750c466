"""The sessions that memory holds, with their calls in flight and their ids; callers' keys; what there is room for."""
