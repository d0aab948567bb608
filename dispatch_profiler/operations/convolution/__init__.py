"""Convolutions with one to three axes, their gradients, and the gradient of a bias."""
