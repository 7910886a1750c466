"""What a trainer imports and a user runs: the resource, the native API's types, the command line."""
