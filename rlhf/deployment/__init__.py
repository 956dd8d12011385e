"""What runs where: engines chosen by the sizes of models and devices."""
