"""What a selection would cost, without data."""
