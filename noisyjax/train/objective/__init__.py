"""What is optimised: advantages, token weights and losses as pure functions, and the metrics that travel with them."""
