"""Layer norms and their gradients."""
